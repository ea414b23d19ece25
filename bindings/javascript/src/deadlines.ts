/** Deadlines of requests, with one timer for all of them: most replies come long before. */

import { MAX_TIMER_MS } from "./wait.js";

/** A request that has no reply yet. */
interface Entry {
  readonly end: number;
  readonly late: () => void;
  isOver: boolean;
}

/** Settles promises at their deadlines, which mostly come in the order of the calls. */
export class Deadlines {
  #entries: Entry[] = [];
  #pending = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** The value of a promise, or an error of `late` if there is none until `end`, by `performance.now()`. */
  within<T>(promise: Promise<T>, end: number, late: () => Error): Promise<T> {
    return new Promise((resolve, reject) => {
      const entry: Entry = { end, late: () => reject(late()), isOver: false };
      this.#push(entry);
      promise.then(
        (value) => {
          this.#end(entry);
          resolve(value);
        },
        (error: Error) => {
          this.#end(entry);
          reject(error);
        },
      );
    });
  }

  #push(entry: Entry): void {
    this.#entries.push(entry);
    this.#pending += 1;
    if (this.#timer === undefined) this.#arm(entry.end);
    // A timer without requests keeps no process alive.
    else if (this.#pending === 1) (this.#timer as { ref?: () => void }).ref?.();
  }

  #end(entry: Entry): void {
    if (entry.isOver) return;
    entry.isOver = true;
    this.#pending -= 1;
    if (this.#pending > 0) return;
    this.#entries = [];
    (this.#timer as { unref?: () => void } | undefined)?.unref?.();
  }

  #arm(end: number): void {
    this.#timer = setTimeout(() => this.#expire(), Math.min(Math.max(end - performance.now(), 0), MAX_TIMER_MS));
  }

  /** Ends what is late, and sets the timer for the next. */
  #expire(): void {
    this.#timer = undefined;
    const now = performance.now();
    const open = this.#entries.filter((it) => !it.isOver);
    this.#entries = open.filter((it) => it.end > now);
    for (const entry of open) {
      if (entry.end > now) continue;
      entry.isOver = true;
      this.#pending -= 1;
      entry.late();
    }
    const next = this.#entries.reduce((least, it) => Math.min(least, it.end), Infinity);
    if (this.#timer === undefined && next < Infinity) this.#arm(next);
  }
}
