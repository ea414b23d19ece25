/** Clocks: whole microseconds since the Unix epoch. */

/** A source of the time. */
export interface Clock {
  /** Microseconds since the Unix epoch. A fraction is cut off. */
  now(): number;
}

/**
 * The time of this process, without steps: the wall clock at the first reading, plus the time elapsed by the monotonic clock. Workers have
 * no time before their first request, so it starts at the first reading.
 */
export class SystemClock implements Clock {
  #offset = Number.NaN;

  now(): number {
    const micros = (monotonic.now() + this.#offset) * 1000;
    if (micros === micros) return micros;
    this.#offset = Date.now() - monotonic.now();
    return this.now();
  }
}

/** In Node, each reading of the global calls a function. */
const monotonic = performance;

/** A clock for tests, which moves only when the test sets it. */
export class ManualClock implements Clock {
  /** `micros` is its time: whole microseconds since the Unix epoch. */
  constructor(public micros = 1_700_000_000_000_000) {}

  now(): number {
    return this.micros;
  }

  /** Moves the clock forward by `ms` milliseconds. */
  advance(ms: number): void {
    this.micros += Math.round(ms * 1000);
  }
}
