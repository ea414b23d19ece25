/**
 * A store for express-rate-limit and hono-rate-limiter, which have one interface.
 *
 *     rateLimit({ windowMs: 60_000, limit: 100, store: new SluicegateStore({ limiter }) })
 */

import { checkedLimiter, known, setting } from "./arguments.js";
import { Windows } from "./counting.js";
import { LocalLimiter, type Limiter } from "./limiter.js";

/** Hits of a client, and the end of its window. */
export interface ClientRateLimitInfo {
  readonly totalHits: number;
  readonly resetTime: Date;
}

/** Prefixes by limiter in memory, once for each store that counts under them. */
const prefixes = new WeakMap<Limiter, string[]>();

/** Counts the hits of clients in windows. */
export class SluicegateStore {
  readonly #limiter: Limiter;
  #windows: Windows | undefined;
  #generation = 0;
  /** Put before each key: limits with one prefix and store share their hits. */
  readonly prefix: string;

  constructor(options: { limiter: Limiter; prefix?: string }) {
    known("option", options, ["limiter", "prefix"]);
    const { limiter, prefix = "rl:" } = options;
    setting("prefix", prefix, typeof prefix === "string", "a string");
    this.#limiter = checkedLimiter(limiter);
    this.prefix = prefix;
    if (limiter instanceof LocalLimiter) prefixes.set(limiter, [...(prefixes.get(limiter) ?? []), prefix]);
  }

  /** Whether no other store counts the same hits. If one may, the package warns of a client that is counted twice. */
  get localKeys(): boolean {
    return prefixes.get(this.#limiter)?.filter((it) => it === this.prefix).length === 1;
  }

  /** Called by the package with its options. */
  init({ windowMs }: { windowMs: number }): void {
    this.#windows = new Windows(this.#limiter, windowMs);
  }

  /** The hits of a client, without counting one. */
  async get(key: string): Promise<ClientRateLimitInfo | undefined> {
    const { units, resetMs } = await this.#counted().read(this.#key(key));
    return units === 0 ? undefined : infoOf(units, resetMs);
  }

  /** Counts a hit. */
  async increment(key: string): Promise<ClientRateLimitInfo> {
    const { units, resetMs } = await this.#counted().add(this.#key(key));
    return infoOf(units, resetMs);
  }

  /** Takes a hit back. */
  async decrement(key: string): Promise<void> {
    await this.#counted().remove(this.#key(key));
  }

  /** Forgets the hits of a client. */
  async resetKey(key: string): Promise<void> {
    await this.#counted().reset(this.#key(key));
  }

  /** Forgets the hits of all clients that this store has counted: they are abandoned, and expire. Other processes go on. */
  async resetAll(): Promise<void> {
    this.#generation += 1;
  }

  #counted(): Windows {
    this.#windows ??= new Windows(this.#limiter, 60_000);
    return this.#windows;
  }

  #key(key: string): string {
    return `${this.prefix}${this.#generation === 0 ? "" : `${this.#generation}:`}${key}`;
  }
}

function infoOf(totalHits: number, resetMs: number): ClientRateLimitInfo {
  return { totalHits, resetTime: new Date(Date.now() + resetMs) };
}
