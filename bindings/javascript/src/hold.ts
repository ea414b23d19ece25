/// <reference lib="esnext.disposable" preserve="true" />

/** Units that are held until they are settled. */

import { Code, type KeyedCost, type Operation } from "./core.js";
import { Decision } from "./decision.js";
import { Denied, OperationError, SluicegateError, StoreError } from "./errors.js";
import { units } from "./arguments.js";
import type { Store } from "./store.js";

/** Times that a settle in the background is repeated, and the first pause between them. */
const MAX_PAUSE_MS = 1000;
const FIRST_PAUSE_MS = 50;

/**
 * Units of one key or of several, which are held until they are settled or expire; or the denial of a hold.
 *
 * `await using` settles it at the end of the block, with as many units as were held.
 */
export class Hold {
  readonly #store: Store;
  readonly #keys: readonly KeyedCost[];
  readonly #operation: Operation;
  /** When the hold has expired, by the clock of this process. */
  readonly #lifetimeMs: number;
  #isOpen: boolean;
  #renewal: ReturnType<typeof setInterval> | undefined;

  /** @internal */
  constructor(
    /** The decision on the hold. */
    readonly decision: Decision,
    store: Store,
    keys: readonly KeyedCost[],
    operation: Operation,
    lifetimeUs: number,
    renews: boolean,
  ) {
    this.#store = store;
    this.#keys = keys;
    this.#operation = operation;
    this.#lifetimeMs = lifetimeUs / 1000;
    this.#isOpen = decision.allowed;
    if (renews && decision.allowed) {
      // Three times in its lifetime. A failed renewal is repeated by the next.
      this.#renewal = setInterval(() => void this.renew().catch(() => undefined), this.#lifetimeMs / 3);
      (this.#renewal as { unref?: () => void }).unref?.();
    }
  }

  /** Whether the units are held. */
  get allowed(): boolean {
    return this.decision.allowed;
  }

  /** Whether units are still held, as far as this process has seen. */
  get open(): boolean {
    return this.#isOpen;
  }

  /** The id of the hold. */
  get id(): Uint8Array {
    return this.#operation.id;
  }

  /**
   * Ends the hold, and charges the units used: a number, one for each key, or as many as were held. The decision is a denial if the hold has
   * expired, or was settled before: then nothing more is charged.
   */
  async settle(used?: number | readonly number[]): Promise<Decision> {
    const { length } = this.#keys;
    const each = used === undefined || typeof used === "number" ? Array.from(this.#keys, () => used) : used;
    if (each.length !== length) {
      throw new OperationError(`invalid used of ${each.length} numbers: expected one number, or one for each of ${length} keys`);
    }
    each.forEach((it) => it === undefined || units("used", it));
    if (!this.#isOpen) return this.#notOpen();
    this.#end();
    return this.#each((index) => settled(each[index]));
  }

  /** Prolongs the hold by its lifetime from now on. The decision is a denial if it is not open. */
  async renew(): Promise<Decision> {
    if (!this.#isOpen) return this.#notOpen();
    return this.#each(() => ({ code: Code.Renew, cost: 0, span: this.#operation.span }));
  }

  /** Ends the hold and charges nothing. */
  cancel(): Promise<Decision> {
    return this.settle(0);
  }

  /** Settles. While the store is unavailable, the settle is repeated in the background until the hold has expired. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isOpen) return;
    try {
      await this.settle();
    } catch (error) {
      if (!(error instanceof SluicegateError)) throw error;
      if (error instanceof StoreError && this.decision.source === "store") this.#settleLater(FIRST_PAUSE_MS, performance.now() + this.#lifetimeMs);
    }
  }

  /** @throws {Denied} The units are not held. */
  require(): this {
    if (!this.allowed) throw new Denied(this.decision);
    return this;
  }

  #end(): void {
    this.#isOpen = false;
    clearInterval(this.#renewal);
  }

  /** Applies an operation to the hold of each key. The decision is that of the key with the fewest units remaining, or a denial. */
  async #each(operation: (index: number) => Omit<Operation, "id">): Promise<Decision> {
    const { core } = this.#store;
    const { id } = this.#operation;
    const decisions = await Promise.all(
      this.#keys.map(async ({ key, policy }, index) => {
        const answer = await this.#store.apply(key, policy, { ...operation(index), id });
        return new Decision(core, policy, answer.integers, answer.source, this.#keys.length > 1 ? index : undefined);
      }),
    );
    return decisions.reduce((one, other) => {
      if (one.allowed !== other.allowed) return one.allowed ? other : one;
      return other.remaining < one.remaining ? other : one;
    });
  }

  #settleLater(pauseMs: number, end: number): void {
    if (performance.now() + pauseMs > end) return;
    const timer = setTimeout(() => {
      this.#each(() => settled(undefined)).catch(() => this.#settleLater(Math.min(pauseMs * 2, MAX_PAUSE_MS), end));
    }, pauseMs);
    (timer as { unref?: () => void }).unref?.();
  }

  #notOpen(): Decision {
    const [, limit = 0, remaining = 0, , reset = 0, , binding = 0] = this.decision.integers();
    const [first] = this.#keys as [KeyedCost];
    return new Decision(this.#store.core, first.policy, [0, limit, remaining, -1, reset, 0, binding]);
  }
}

function settled(used: number | undefined): Omit<Operation, "id"> {
  return { code: Code.Settle, cost: used ?? 0, span: used === undefined ? -1 : 0 };
}
