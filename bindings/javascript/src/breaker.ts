/** Circuit breaker: while the store fails, requests do not wait for it, except one each 100 ms. */

const MAX_FAILURES = 10;
/** Milliseconds between two requests while it is open. */
const PROBE_EVERY = 100;

/** Counts consecutive failures. */
export class Breaker {
  #failures = 0;
  #nextProbe = 0;

  /** Whether a request may be sent now. */
  admits(): boolean {
    if (this.#failures < MAX_FAILURES) return true;
    const now = performance.now();
    if (now < this.#nextProbe) return false;
    this.#nextProbe = now + PROBE_EVERY;
    return true;
  }

  /** A reply has come, an error reply included. */
  succeeded(): void {
    this.#failures = 0;
  }

  /** No reply has come in time, or the store refuses. */
  failed(): void {
    this.#failures += 1;
    if (this.#failures === MAX_FAILURES) this.#nextProbe = performance.now() + PROBE_EVERY;
  }
}
