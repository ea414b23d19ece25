/** Exact rate limits: in the process, or in a store that processes share. */

export type { RedisClient } from "./clients.js";
export { ManualClock, type Clock } from "./clock.js";
export type { Key, Source } from "./core.js";
export { Decision } from "./decision.js";
export {
  CorruptState,
  Denied,
  InvalidKey,
  OperationError,
  PolicyError,
  SettingsError,
  SluicegateError,
  StoreError,
  StoreTimeout,
  StoreUnavailable,
} from "./errors.js";
export { Hold } from "./hold.js";
export { Limiter, LocalLimiter, type HoldOptions, type Keyed, type MemorySettings, type WaitOptions } from "./limiter.js";
export type { Usage } from "./memory.js";
export { Policy, type Limit, type OnError, type PolicyLike } from "./policy.js";
export type { RemoteSettings } from "./remote.js";
