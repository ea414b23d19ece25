/** Circuit breaker: while the store fails, requests do not wait for it, except one each 100 ms. It calls functions when an outage begins and ends. */

import type { StoreError } from "./errors.js";

const MAX_FAILURES = 10;
/** Milliseconds between two requests while it is open. */
const PROBE_EVERY = 100;

/** Milliseconds without a failure after which a reply ends an outage: of the nodes of a cluster, one may fail while others answer. */
const CALM = 1000;

/** Counts consecutive failures, and reports outages. */
export class Breaker {
  #failures = 0;
  #nextProbe = 0;
  #failedAt = 0;
  #error: StoreError | undefined;
  readonly #begins: (error: StoreError) => void;
  readonly #ends: () => void;

  /** What to call when an outage begins, and when it ends. */
  constructor(begins: (error: StoreError) => void, ends: () => void) {
    this.#begins = begins;
    this.#ends = ends;
  }

  /** The error that began the present outage. */
  get error(): StoreError | undefined {
    return this.#error;
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
    this.#failures = 0;
    if (this.#error === undefined || performance.now() - this.#failedAt < CALM) return;
    this.#error = undefined;
    this.#ends();
  }

  /** No reply has come in time, or the store refuses. */
  failed(error: StoreError): void {
    this.#failures += 1;
    this.#failedAt = performance.now();
    if (this.#failures === MAX_FAILURES) this.#nextProbe = this.#failedAt + PROBE_EVERY;
    if (this.#error === undefined) this.#begins((this.#error = error));
  }
}
