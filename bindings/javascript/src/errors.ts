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

/** The policy does not support the operation, or an argument of it is invalid. */
export class OperationError extends SluicegateError {}

/** A key is empty, or longer than 65 536 bytes. No store was asked. */
export class InvalidKey extends OperationError {}

/** A setting is invalid, such as the URL of a store. */
export class SettingsError extends SluicegateError {}

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
  ) {
    super(decision.never ? `denied: the cost is more than the limit of ${decision.limit} ever admits` : `denied: retry after ${decision.retryAfterMs} ms`);
  }
}
