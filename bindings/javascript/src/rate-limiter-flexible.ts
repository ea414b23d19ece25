/**
 * A limiter with the interface of rate-limiter-flexible.
 *
 *     const limiter = new RateLimiter({ limiter: Limiter.inMemory(), points: 10, duration: 1 });
 *     limiter.consume(ip).then(...).catch(...);
 *
 * A `duration` of 0 is 366 days, and `msBeforeNext` is then -1. Points are counted in windows of one length: a `customDuration` or `secDuration` other than
 * `duration` is an error, except for `block`, which lasts up to 366 days, and 497 days if its `secDuration` is 0. `reward` gives back points in use, and no others.
 */

import { Windows, type Count } from "./counting.js";
import { known, micros, units } from "./arguments.js";
import { OperationError, SettingsError } from "./errors.js";
import type { Limiter } from "./limiter.js";
import { Policy } from "./policy.js";
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
/** A block is the usage of a key that drains by a unit each 10 ms. A fallback knows no blocks. */
const BLOCK = new Policy("gcra:100/1s:burst=1", { onError: "fail" });
const BLOCK_UNIT_MS = 10;
const MAX_UNITS = 4_294_967_295;
/** The time before the next points if they never come back. */
const NEVER = -1;

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
    units("points", points, SettingsError);
    micros("blockDuration", blockDuration, SettingsError);
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
    if (!this.execEvenly || result.isFirstInDuration || result.msBeforeNext <= 0) return result;
    let delay = Math.ceil(result.msBeforeNext / (result.remainingPoints + 2));
    if (delay < this.execEvenlyMinDelayMs) delay = result.consumedPoints * this.execEvenlyMinDelayMs;
    await sleep(delay);
    return new RateLimiterRes(result.remainingPoints, Math.max(result.msBeforeNext - delay, 0), result.consumedPoints);
  }

  /** Consumes points whether or not there are enough. */
  async penalty(key: string | number, points = 1, options: { customDuration?: number } = {}): Promise<RateLimiterRes> {
    this.#check("customDuration", options.customDuration);
    return this.#result(await this.#windows.add(this.getKey(key), points), points);
  }

  /** Gives points back. */
  async reward(key: string | number, points = 1, options: { customDuration?: number } = {}): Promise<RateLimiterRes> {
    this.#check("customDuration", options.customDuration);
    return this.#result(await this.#windows.remove(this.getKey(key), points), 0);
  }

  /** The points of a key; `null` if it has none. */
  async get(key: string | number): Promise<RateLimiterRes | null> {
    const blocked = await this.#blocked(key);
    if (blocked !== null) return blocked;
    const count = await this.#windows.read(this.getKey(key));
    return count.units === 0 ? null : this.#result(count, 0);
  }

  /** Sets the points that a key has consumed. `secDuration` must be the duration of the limiter. */
  async set(key: string | number, points: number, secDuration?: number): Promise<RateLimiterRes> {
    this.#check("secDuration", secDuration);
    // Sent together, so that no call on the key comes between.
    const [, count] = await Promise.all([this.delete(key), this.#windows.add(this.getKey(key), points)]);
    return new RateLimiterRes(0, this.#result(count, 0).msBeforeNext, points);
  }

  /** Blocks a key for `secDuration` seconds. */
  async block(key: string | number, secDuration: number): Promise<RateLimiterRes> {
    return this.#block(key, secDuration, this.points + 1);
  }

  /** Forgets a key and its block. Whether there was one. */
  async delete(key: string | number): Promise<boolean> {
    const had = await Promise.all([this.#limiter.reset(this.getKey(key)), this.#limiter.reset(this.#blockKey(key))]);
    return had.some(Boolean);
  }

  async #block(key: string | number, seconds: number, consumed: number): Promise<RateLimiterRes> {
    const ms = Math.min(micros("secDuration", seconds * 1000) / 1000, NEVER_SECONDS * 1000);
    const name = this.#blockKey(key);
    const cost = seconds === 0 ? MAX_UNITS : Math.ceil(ms / BLOCK_UNIT_MS);
    // Sent together, so that the next call finds the block.
    await Promise.all([this.#limiter.reset(name), this.#limiter.charge(name, BLOCK, cost)]);
    return new RateLimiterRes(0, seconds === 0 ? NEVER : ms, consumed);
  }

  async #blocked(key: string | number): Promise<RateLimiterRes | null> {
    const block = await this.#limiter.peek(this.#blockKey(key), BLOCK);
    if (block.allowed) return null;
    const ms = block.resetAfterMs;
    return new RateLimiterRes(0, ms > NEVER_SECONDS * 1000 ? NEVER : ms, this.points + 1);
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
    return new RateLimiterRes(Math.max(this.points - units, 0), this.duration === 0 ? NEVER : resetMs, units, units === added);
  }
}
