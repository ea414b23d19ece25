/** The seam between the limiter and state: what a store does. */

import type { Answer, Core, Key, KeyedCost, Operation } from "./core.js";
import type { SluicegateError } from "./errors.js";

/** A value now, or later. */
export type Maybe<T> = T | Promise<T>;

/** @internal A store of state, which decides each request atomically. An error is thrown now, or later. */
export interface Store {
  /** The core that reads policies and describes decisions. */
  readonly core: Core;
  /** Why the store is unavailable, if it is, as far as this process has seen. */
  readonly unavailable?: string | undefined;
  /** Applies an operation to a key under a policy. */
  apply(key: Key, policy: string, operation: Operation): Maybe<Answer>;
  /** Applies takes, peeks or holds of several keys, all or none. `code` and the rest are those of `operation`. */
  applyAll(keys: readonly KeyedCost[], operation: Operation): Maybe<Answer>;
  /** Takes from several keys, each by itself, in one round trip. */
  takeMany(takes: readonly KeyedCost[]): Maybe<readonly (Answer | SluicegateError)[]>;
  /** Resets a key. Whether it had state that had not recovered. */
  reset(key: Key): Maybe<boolean>;
  /** Closes what the store has opened itself. */
  close(): Maybe<void>;
}

/** `next` of a value, now or later. */
export function then<T, R>(value: Maybe<T>, next: (value: T) => R): Maybe<R> {
  return value instanceof Promise ? value.then(next) : next(value);
}
