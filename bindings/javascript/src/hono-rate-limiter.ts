/** A store for hono-rate-limiter, whose interface is that of express-rate-limit. */

export { SluicegateStore, type ClientRateLimitInfo } from "./express-rate-limit.js";
