/**
 * A limiter with the interface of rate-limiter-flexible.
 *
 *     const limiter = new RateLimiter({ limiter: Limiter.inMemory(), points: 10, duration: 1 });
 *     limiter.consume(ip).then(...).catch(...);
 *
 * A `duration` of 0 is 366 days. Points are counted in windows of one length: a `customDuration` or `secDuration` other than `duration` is an error, except for
 * `block`, which lasts up to 49 days.
 */

import { Windows, type Count } from "./counting.js";
import { known } from "./arguments.js";
import { OperationError } from "./errors.js";
import type { Limiter } from "./limiter.js";
import { sleep } from "./wait.js";

/** What `consume` and the others return, and what `consume` rejects with if there are not enough points. */
export class RateLimiterRes {
  constructor(
    readonly remainingPoints = 0,
    readonly msBeforeNext = 0,
    readonly consumedPoints = 0,
    readonly isFirstInDuration = false,
  ) {}

  toJSON(): Record<string, unknown> {
    const { remainingPoints, msBeforeNext, consumedPoints, isFirstInDuration } = this;
    return { remainingPoints, msBeforeNext, consumedPoints, isFirstInDuration };
  }

  toString(): string {
    return JSON.stringify(this.toJSON());
  }
}

/** Options, with the names and meanings of the package. */
export interface RateLimiterOptions {
  readonly limiter: Limiter;
  /** Points per duration. */
  readonly points: number;
  /** Seconds of a window, which begins with its first point. */
  readonly duration: number;
  readonly keyPrefix?: string;
  /** Seconds for which a key is blocked that has consumed too much. */
  readonly blockDuration?: number;
  /** Spreads the consumption of a window evenly, by delays. */
  readonly execEvenly?: boolean;
  readonly execEvenlyMinDelayMs?: number;
}

const NEVER_SECONDS = 366 * 86_400;
/** A block is the usage of a key that drains by a unit each millisecond. */
const BLOCK = "gcra:1000/1s:burst=1";
const MAX_UNITS = 4_294_967_295;

/** Counts points of keys. */
export class RateLimiter {
  readonly points: number;
  readonly duration: number;
  readonly blockDuration: number;
  readonly execEvenly: boolean;
  readonly execEvenlyMinDelayMs: number;
  readonly keyPrefix: string;
  readonly #limiter: Limiter;
  readonly #windows: Windows;

  constructor(options: RateLimiterOptions) {
    known("option", options, ["limiter", "points", "duration", "keyPrefix", "blockDuration", "execEvenly", "execEvenlyMinDelayMs"]);
    const { limiter, points, duration, keyPrefix = "rlflx", blockDuration = 0, execEvenly = false } = options;
    this.#limiter = limiter;
    this.points = points;
    this.duration = duration;
    this.keyPrefix = keyPrefix;
    this.blockDuration = blockDuration;
    this.execEvenly = execEvenly;
    this.execEvenlyMinDelayMs = options.execEvenlyMinDelayMs ?? Math.ceil((duration * 1000) / points);
    this.#windows = new Windows(limiter, (duration === 0 ? NEVER_SECONDS : duration) * 1000);
  }

  /** The key in the store. */
  getKey(key: string | number): string {
    return this.keyPrefix.length > 0 ? `${this.keyPrefix}:${key}` : String(key);
  }

  /** Consumes points. Rejects with a `RateLimiterRes` if there are not enough, and with an error if the store is unavailable. */
  async consume(key: string | number, pointsToConsume = 1, options: { customDuration?: number } = {}): Promise<RateLimiterRes> {
    this.#check("customDuration", options.customDuration);
    const blocked = await this.#blocked(key);
    if (blocked !== null) throw blocked;
    const count = await this.#windows.add(this.getKey(key), pointsToConsume);
    const result = this.#result(count, pointsToConsume);
    if (result.consumedPoints > this.points) {
      if (this.blockDuration > 0 && result.consumedPoints <= this.points + pointsToConsume) throw await this.#block(key, this.blockDuration, count.units);
      throw result;
    }
    if (!this.execEvenly || result.isFirstInDuration) return result;
    let delay = Math.ceil(result.msBeforeNext / (result.remainingPoints + 2));
    if (delay < this.execEvenlyMinDelayMs) delay = result.consumedPoints * this.execEvenlyMinDelayMs;
    await sleep(delay);
    return new RateLimiterRes(result.remainingPoints, Math.max(result.msBeforeNext - delay, 0), result.consumedPoints);
  }

  /** Consumes points whether or not there are enough. */
  async penalty(key: string | number, points = 1): Promise<RateLimiterRes> {
    return this.#result(await this.#windows.add(this.getKey(key), points), points);
  }

  /** Gives points back. */
  async reward(key: string | number, points = 1): Promise<RateLimiterRes> {
    return this.#result(await this.#windows.remove(this.getKey(key), points), 0);
  }

  /** The points of a key; `null` if it has none. */
  async get(key: string | number): Promise<RateLimiterRes | null> {
    const blocked = await this.#blocked(key);
    if (blocked !== null) return blocked;
    const count = await this.#windows.read(this.getKey(key));
    return count.units === 0 ? null : this.#result(count, 0);
  }

  /** Sets the points that a key has consumed, for `secDuration` seconds. */
  async set(key: string | number, points: number, secDuration: number): Promise<RateLimiterRes> {
    this.#check("secDuration", secDuration);
    await this.delete(key);
    const { resetMs } = await this.#windows.add(this.getKey(key), points);
    return new RateLimiterRes(0, secDuration === 0 ? -1 : resetMs, points);
  }

  /** Blocks a key for `secDuration` seconds. */
  async block(key: string | number, secDuration: number): Promise<RateLimiterRes> {
    const result = await this.#block(key, secDuration, this.points + 1);
    return secDuration === 0 ? new RateLimiterRes(0, -1, result.consumedPoints) : result;
  }

  /** Forgets a key and its block. Whether there was one. */
  async delete(key: string | number): Promise<boolean> {
    const had = await Promise.all([this.#limiter.reset(this.getKey(key)), this.#limiter.reset(this.#blockKey(key))]);
    return had.some(Boolean);
  }

  async #block(key: string | number, seconds: number, consumed: number): Promise<RateLimiterRes> {
    const ms = (seconds === 0 ? NEVER_SECONDS : seconds) * 1000;
    await this.#limiter.reset(this.#blockKey(key));
    await this.#limiter.charge(this.#blockKey(key), BLOCK, Math.min(Math.ceil(ms), MAX_UNITS));
    return new RateLimiterRes(0, ms, consumed);
  }

  async #blocked(key: string | number): Promise<RateLimiterRes | null> {
    const block = await this.#limiter.peek(this.#blockKey(key), BLOCK);
    return block.allowed ? null : new RateLimiterRes(0, block.resetAfterMs, this.points + 1);
  }

  #blockKey(key: string | number): string {
    return `${this.getKey(key)}:block`;
  }

  #check(name: string, seconds: number | undefined): void {
    if (seconds !== undefined && seconds !== this.duration) {
      throw new OperationError(`invalid ${name} \`${String(seconds)}\`: expected the duration of the limiter, ${this.duration}`);
    }
  }

  #result({ units, resetMs }: Count, added: number): RateLimiterRes {
    return new RateLimiterRes(Math.max(this.points - units, 0), resetMs, units, units === added);
  }
}
