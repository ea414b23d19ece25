/** Requests that wait: the steps of the core's waiter, carried out on a store with the timers of JavaScript. */

import { Code, type Answer, type KeyedCost, type Operation } from "./core.js";
import type { Store } from "./store.js";

/** Steps of the core, and events for it. */
const APPLY = 0;
const SLEEP = 1;
const [START, WOKEN, ANSWERED] = [0, 1, 2];
/** The longest timer of JavaScript. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** How a request waits. */
export interface Waiting {
  readonly timeoutUs: number;
  /** Up to this is added to each sleep, at random. */
  readonly jitterUs: number;
  readonly signal: AbortSignal | undefined;
  /** Whether a hold of this id may be open already. */
  readonly mayBeOpen: boolean;
}

/**
 * Applies `operation`, a take or a hold, to all keys as soon as they allow it. `opens` is called before a hold is sent, which the store may then
 * make.
 *
 * When `signal` aborts, it rejects with the reason, and units that were reserved are refunded. A take that has passed resolves.
 */
export async function pending(store: Store, keys: readonly KeyedCost[], operation: Operation, waiting: Waiting, opens?: () => void): Promise<Answer> {
  const { core } = store;
  const { timeoutUs, jitterUs, signal, mayBeOpen } = waiting;
  signal?.throwIfAborted();
  core.keys(keys, operation.id);
  const handle = core.wasm.wait(operation.code, keys.length, operation.id.length, operation.span, timeoutUs, mayBeOpen ? 1 : 0);
  core.check(handle);
  const start = performance.now();
  const now = (): number => Math.round((performance.now() - start) * 1000);
  let isDone = false;
  let last: Answer | undefined;
  try {
    let step = core.wasm.poll(handle, START, now());
    for (;;) {
      core.check(step);
      if (step === APPLY) {
        const answer = await applied(store, keys, operation, handle, opens);
        core.put(answer);
        last = answer;
        step = core.wasm.poll(handle, ANSWERED, now());
      } else if (step === SLEEP) {
        const [until = 0, deadline = 0] = core.numbers;
        const latest = Math.max(deadline, until);
        await sleepUntil(Math.min(until + Math.random() * jitterUs, latest), now, signal);
        step = core.wasm.poll(handle, WOKEN, now());
      } else {
        isDone = true;
        const answer = core.answer(keys.length);
        // Units of a take that has passed are not given back: a refund could be of units of others.
        if (operation.code === Code.Hold || answer.integers[0] === 0) signal?.throwIfAborted();
        // The core does not know it.
        return answer.integers[0] === 0 && last?.source === "table_full" ? { ...answer, source: "table_full" } : answer;
      }
      if (step !== SLEEP && step !== APPLY) continue;
      signal?.throwIfAborted();
    }
  } finally {
    const units = core.wasm.cancel(handle);
    const [first] = keys;
    if (!isDone && units > 0 && first) await refund(store, first, units);
  }
}

/** Applies the operation of the present step to all keys. */
async function applied(store: Store, keys: readonly KeyedCost[], given: Operation, handle: number, opens?: () => void): Promise<Answer> {
  const { core } = store;
  const operations = keys.map((_, index): Operation => {
    const code: Code = core.wasm.waiting_operation(handle, index);
    const [cost = 0, span = -1] = core.numbers;
    return { code, cost, span, id: given.id };
  });
  const [first] = keys as [KeyedCost];
  const [operation] = operations as [Operation];
  if (operation.code === Code.Hold) opens?.();
  return keys.length === 1 ? store.apply(first.key, first.policy, operation) : store.applyAll(keys, operation);
}

/** Gives units back. If that fails, they recover in time. */
async function refund(store: Store, { key, policy }: KeyedCost, cost: number): Promise<void> {
  try {
    await store.apply(key, policy, { code: Code.Refund, cost, span: -1, id: new Uint8Array() });
  } catch {
    // The error that ended the wait is the one to report.
  }
}

/** Sleeps until `now` is `until`, in microseconds. */
async function sleepUntil(until: number, now: () => number, signal: AbortSignal | undefined): Promise<void> {
  for (let left = until - now(); left > 0; left = until - now()) {
    await sleep(Math.min(Math.ceil(left / 1000), MAX_TIMER_MS), signal);
  }
}

/** Sleeps. @throws The reason of `signal`, as soon as it aborts. */
export function sleep(ms: number, signal?: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, ms);
    if (signal?.aborted) end();
    else signal?.addEventListener("abort", end, { once: true });
  });
}
