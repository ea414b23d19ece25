/**
 * A storage for @nestjs/throttler.
 *
 *     ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 100 }], storage: new SluicegateStorage(limiter) })
 *
 * A throttler is a `sliding-log`: exactly `limit` hits in any `ttl` milliseconds. A `blockDuration` other than `ttl` blocks a key that has exceeded its
 * limit for so long; then its hits are counted from zero.
 */

import { checkedLimiter } from "./arguments.js";
import type { Decision } from "./decision.js";
import type { Limiter } from "./limiter.js";

/** What the package reads. Times are seconds, rounded up. */
export interface ThrottlerStorageRecord {
  totalHits: number;
  timeToExpire: number;
  isBlocked: boolean;
  timeToBlockExpire: number;
}

/** Counts the hits of throttlers. */
export class SluicegateStorage {
  readonly #limiter: Limiter;

  constructor(limiter: Limiter) {
    this.#limiter = checkedLimiter(limiter);
  }

  /** Counts a hit, unless it is denied. */
  async increment(key: string, ttl: number, limit: number, blockDuration: number, throttlerName: string): Promise<ThrottlerStorageRecord> {
    const name = `${throttlerName}:${key}`;
    // Both keys have one hash tag, for Redis Cluster.
    const blockKey = `{${name}}:block`;
    const hits = { key: `{${name}}`, policy: `sliding-log:${Math.max(limit, 1)}/${ttl}ms`, cost: limit > 0 ? 1 : 2 };
    if (!(blockDuration > 0) || blockDuration === ttl) {
      const decision = await this.#limiter.take(hits.key, hits.policy, hits.cost);
      return decision.allowed ? passed(decision) : recordOf(limit + 1, decision.resetAfterMs, decision.retryAfterMs ?? ttl);
    }
    // A block is a window that is used up. One request decides on both, therefore no hit passes while the block begins.
    const block = { key: blockKey, policy: `fixed-window:${BLOCK}/${blockDuration}ms` };
    const decision = await this.#limiter.takeAll([hits, block]);
    const [counted, blocked] = decision.each as [Decision, Decision];
    if (decision.allowed) return passed(counted);
    if (decision.source === "fallback" || !blocked.allowed) return recordOf(limit + 1, decision.resetAfterMs, decision.retryAfterMs ?? 0);
    await Promise.all([
      this.#limiter.reset(block.key),
      this.#limiter.charge(block.key, block.policy, BLOCK),
      this.#limiter.reset(hits.key),
    ]);
    return recordOf(limit + 1, counted.resetAfterMs, blockDuration);
  }
}

/** Units of a block: more than the hits that pass in its window. */
const BLOCK = 4_294_967_295;

function passed({ limit, remaining, resetAfterMs }: Decision): ThrottlerStorageRecord {
  return recordOf(limit - remaining, resetAfterMs, 0);
}

function recordOf(totalHits: number, expiresMs: number, blockedMs: number): ThrottlerStorageRecord {
  const [timeToExpire = 0, timeToBlockExpire = 0] = [expiresMs, blockedMs].map((ms) => Math.ceil(ms / 1000));
  return { totalHits, timeToExpire, isBlocked: blockedMs > 0, timeToBlockExpire };
}
