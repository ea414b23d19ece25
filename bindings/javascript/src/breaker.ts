/** Circuit breaker: while the store fails, requests do not wait for it, except one each 100 ms. It says when that begins and ends. */

import type { StoreError } from "./errors.js";

const MAX_FAILURES = 10;
/** Milliseconds between two requests while it is open. */
const PROBE_EVERY = 100;

/** Counts consecutive failures. An outage is from the first until the next reply. */
export class Breaker {
  #failures = 0;
  #nextProbe = 0;
  readonly #begins: (error: StoreError) => void;
  readonly #ends: () => void;

  /** What to call when an outage begins, and when it ends. */
  constructor(begins: (error: StoreError) => void, ends: () => void) {
    this.#begins = begins;
    this.#ends = ends;
  }

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
    if (this.#failures === 0) return;
    this.#failures = 0;
    this.#ends();
  }

  /** No reply has come in time, or the store refuses. */
  failed(error: StoreError): void {
    this.#failures += 1;
    if (this.#failures === 1) this.#begins(error);
    if (this.#failures === MAX_FAILURES) this.#nextProbe = performance.now() + PROBE_EVERY;
  }
}
