/**
 * A storage for @nestjs/throttler.
 *
 *     ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 100 }], storage: new SluicegateStorage(limiter) })
 *
 * A throttler is a `sliding-log`: exactly `limit` hits in any `ttl` milliseconds. A `blockDuration` other than `ttl` blocks a key that has exceeded its
 * limit for so long.
 */

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
    this.#limiter = limiter;
  }

  /** Counts a hit, unless it is denied. */
  async increment(key: string, ttl: number, limit: number, blockDuration: number, throttlerName: string): Promise<ThrottlerStorageRecord> {
    const name = `${throttlerName}:${key}`;
    // Both keys have one hash tag, for Redis Cluster.
    const blockKey = `{${name}}:block`;
    const block = `fixed-window:1/${blockDuration}ms`;
    const blocks = blockDuration > 0 && blockDuration !== ttl;
    if (blocks) {
      const blocked = await this.#limiter.peek(blockKey, block);
      if (!blocked.allowed) return recordOf(limit + 1, blocked.resetAfterMs, blocked.retryAfterMs ?? 0);
    }
    const decision = await this.#limiter.take(`{${name}}`, `sliding-log:${Math.max(limit, 1)}/${ttl}ms`, limit > 0 ? 1 : 2);
    if (decision.allowed) return recordOf(decision.limit - decision.remaining, decision.resetAfterMs, 0);
    if (blocks) await this.#limiter.charge(blockKey, block);
    return recordOf(limit + 1, decision.resetAfterMs, blocks ? blockDuration : (decision.retryAfterMs ?? ttl));
  }
}

function recordOf(totalHits: number, expiresMs: number, blockedMs: number): ThrottlerStorageRecord {
  const [timeToExpire = 0, timeToBlockExpire = 0] = [expiresMs, blockedMs].map((ms) => Math.ceil(ms / 1000));
  return { totalHits, timeToExpire, isBlocked: blockedMs > 0, timeToBlockExpire };
}
