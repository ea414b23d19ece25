/** The errors of this package. A denial is an answer and throws none, except by `require` and `await using`. */

import type { Decision } from "./decision.js";

/** The base of all errors of this package. */
export class SluicegateError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The text or a member of a policy is invalid. */
export class PolicyError extends SluicegateError {}

/** The policy does not support the operation, an argument of it is invalid, or the limiter is closed. */
export class OperationError extends SluicegateError {}

/** @internal The error of each call after `close`. */
export function limiterIsClosed(): OperationError {
  return new OperationError("the limiter is closed");
}

/** A key is empty, or longer than 65 536 bytes. No store was asked. */
export class InvalidKey extends OperationError {}

/** A setting or an option is unknown or invalid, such as the URL of a store. */
export class SettingsError extends SluicegateError {}

/** A text of the core or of a store, whose times are microseconds, in milliseconds. */
export function inMilliseconds(text: string): string {
  if (!/\d microseconds/.test(text)) return text;
  return text.replace(/\b\d+\b/g, (micros) => String(Number(micros) / 1000)).replace(/(\d) microseconds/, "$1 milliseconds");
}

/** The store made no decision. */
export class StoreError extends SluicegateError {}

/** The store cannot be reached, or refuses. */
export class StoreUnavailable extends StoreError {}

/** The store has not answered in time. */
export class StoreTimeout extends StoreError {}

/** The key holds a value that Sluicegate did not write, or that is damaged. */
export class CorruptState extends StoreError {}

/** Units that `require` or `await using` needs are not available. */
export class Denied extends SluicegateError {
  constructor(
    /** The denial. */
    readonly decision: Decision,
    /** @internal Why, if there is more to say. */
    reason?: string,
  ) {
    const retry = decision.never ? `the cost is more than the limit of ${decision.limit} ever admits` : `retry after ${decision.retryAfterMs} ms`;
    super(`denied: ${reason === undefined || decision.never ? "" : `${reason}; `}${retry}`);
  }

  /** That of the denial: `undefined` if the request never passes. */
  get retryAfterMs(): number | undefined {
    return this.decision.retryAfterMs;
  }
}
