/// <reference lib="esnext.disposable" preserve="true" />

/** The limiter: what a user calls. */

import { checkedKey, idBytes, known, MAX_TTL_US, micros, setting, shown, ttlMicros, units } from "./arguments.js";
import { SystemClock, type Clock } from "./clock.js";
import { Code, NO_BYTES, type Answer, type Key, type KeyedCost, type Operation } from "./core.js";
import { Decision } from "./decision.js";
import { Denied, limiterIsClosed, OperationError, PolicyError, SettingsError, SluicegateError } from "./errors.js";
import { Hold } from "./hold.js";
import { MemoryStore, type Usage } from "./memory.js";
import { idOf, isPolicy, Policy, textOf, type OnError, type PolicyLike } from "./policy.js";
import type { RedisClient } from "./clients.js";
import { RemoteStore, type RemoteSettings } from "./remote.js";
import { then, type Maybe, type Store } from "./store.js";
import { pending, type Waiting } from "./wait.js";

/** A key with its policy, and its cost (1). */
export interface Keyed {
  readonly key: Key;
  readonly policy: PolicyLike;
  readonly cost?: number;
}

/** How long a call waits. */
export interface WaitOptions {
  /** Units to take (1). */
  readonly cost?: number;
  /** Milliseconds to wait at most. */
  readonly timeout: number;
  /** Up to this many milliseconds are added to each sleep, at random. */
  readonly jitter?: number;
  /** Ends the wait, and gives back what was reserved. */
  readonly signal?: AbortSignal | undefined;
}

/** How units are held. */
export interface HoldOptions {
  /** Units to hold (1). */
  readonly cost?: number;
  /** Milliseconds until the hold expires: required unless the policy has `concurrency` limits. */
  readonly ttl?: number;
  /** Names one hold of the key, 1 to 64 bytes: a repeated call holds once. */
  readonly id?: Key;
  /** Milliseconds to wait until the units are available (0). */
  readonly timeout?: number;
  /** Ends the wait, or cancels the hold that it has led to. */
  readonly signal?: AbortSignal | undefined;
  /** Prolongs the hold while it is open. */
  readonly renew?: boolean;
}

/** Settings of a limiter in memory. */
export interface MemorySettings {
  /** Bytes of state (64 MiB). When they are in use, new keys are denied. */
  readonly maxMemory?: number;
  /** A clock instead of the system's: for tests. */
  readonly clock?: Clock;
}

const DEFAULT_MAX_MEMORY = 64 << 20;
const KEYED = ["key", "policy", "cost"];
const WAIT = ["cost", "timeout", "jitter", "signal"];
const HOLD_ALL = ["ttl", "id", "timeout", "signal", "renew"];
const HOLD = ["cost", ...HOLD_ALL];

/** Which keys of a call on several are stored: the first index of each, and for each key of the call its place among them. */
interface Places {
  readonly indices: readonly number[];
  readonly places: readonly number[];
}

/**
 * Limits in this process (`Limiter.inMemory`), or in a store that processes share (`Limiter.redis`, `Limiter.server`).
 *
 * A key is what is limited, such as `"login:user7"`. The usage of a key carries over from one policy to another.
 */
export class Limiter {
  #open: () => Store;
  /** @internal The answer while the store is unavailable, for policies that do not say. */
  readonly onError: OnError | undefined;
  #store: Store | undefined;
  /** Requests that wait, and what ends them. */
  readonly #waits = new Map<AbortController, Promise<unknown>>();

  /** @internal The store is opened at the first call, because workers can make no table before their first request. */
  protected constructor(open: () => Store, onError?: OnError) {
    if (typeof open !== "function") throw new SettingsError("invalid `new Limiter()`: expected `Limiter.inMemory()`, `Limiter.redis(...)` or `Limiter.server(...)`");
    this.#open = open;
    this.onError = onError;
  }

  /** @internal */
  get store(): Store {
    return (this.#store ??= this.#open());
  }

  /** Why the store is unavailable, since a request got no reply; `undefined` once it answers again, and always in memory. No call is made. */
  get unavailable(): string | undefined {
    return this.#store?.unavailable;
  }

  /** A limiter in this process. */
  static inMemory(settings: MemorySettings = {}): LocalLimiter {
    return new LocalLimiter(settings);
  }

  /**
   * A limiter in Redis or Valkey, with the Sluicegate module or by functions: through a client of ioredis, iovalkey, node-redis or Bun; or through a
   * connection of its own to one node, at `redis://HOST`, `rediss://HOST` (TLS) or `unix:///PATH`.
   */
  static redis(client: RedisClient | string, settings: RemoteSettings = {}): Limiter {
    return Limiter.#remote(RemoteStore.of(client, settings), settings);
  }

  /** A limiter in a Sluicegate server at `url`: `redis://HOST:6380`, `rediss://HOST` (TLS) or `unix:///PATH`. It connects at the first call. */
  static server(url: string, settings: RemoteSettings = {}): Limiter {
    return Limiter.#remote(RemoteStore.at(url, settings), settings);
  }

  static #remote(store: RemoteStore, { onError }: RemoteSettings): Limiter {
    const limiter = new Limiter(() => store, onError);
    limiter.#store = store;
    return limiter;
  }

  /** Takes `cost` units, all or none. */
  async take(key: Key, policy: PolicyLike, cost = 1): Promise<Decision> {
    return this.#apply(key, policy, Code.Take, cost);
  }

  /** Returns what `take` would return, and changes nothing. */
  async peek(key: Key, policy: PolicyLike, cost = 1): Promise<Decision> {
    return this.#apply(key, policy, Code.Peek, cost);
  }

  /** Takes `cost` units whether or not they fit, for a cost that is known only afterwards. */
  async charge(key: Key, policy: PolicyLike, cost = 1): Promise<Decision> {
    return this.#apply(key, policy, Code.Charge, cost);
  }

  /** Gives back up to `cost` of the units in use. */
  async refund(key: Key, policy: PolicyLike, cost = 1): Promise<Decision> {
    return this.#apply(key, policy, Code.Refund, cost);
  }

  /** Takes `cost` units, or throws `Denied`. */
  async require(key: Key, policy: PolicyLike, cost = 1): Promise<Decision> {
    const decision = await this.take(key, policy, cost);
    if (!decision.allowed) throw new Denied(decision);
    return decision;
  }

  /** Takes units now, for use after `decision.delayMs`, which is at most `maxWait` milliseconds. */
  async reserve(key: Key, policy: PolicyLike, options: { cost?: number; maxWait: number }): Promise<Decision> {
    const { cost = 1, maxWait } = given(options, ["cost", "maxWait"]);
    return this.#apply(key, policy, Code.Reserve, cost, micros("maxWait", maxWait));
  }

  /** Waits until units are taken, or returns a denial at once if that does not happen within `timeout`. */
  async wait(key: Key, policy: PolicyLike, options: WaitOptions): Promise<Decision> {
    const { cost = 1, timeout, ...rest } = given(options, WAIT);
    const keyed = this.keyed({ key, policy, cost });
    const operation = { code: Code.Take, cost: keyed.cost, span: -1, id: NO_BYTES };
    const { store } = this;
    const how = waiting(timeout, rest);
    const answer = await this.#untilClosed(how.signal, async (signal) => pending(store, [keyed], operation, { ...how, signal }));
    return this.#decision(answer, [keyed]);
  }

  /** Runs a call that waits. It ends when the limiter is closed. */
  async #untilClosed<T>(signal: AbortSignal | undefined, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const ends = new AbortController();
    const abort = (): void => ends.abort(signal?.reason);
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort, { once: true });
    const waits = run(ends.signal);
    this.#waits.set(ends, waits);
    try {
      return await waits;
    } finally {
      this.#waits.delete(ends);
      signal?.removeEventListener("abort", abort);
    }
  }

  /** Resets `key`. Whether it had usage. */
  async reset(key: Key): Promise<boolean> {
    return this.store.reset(checkedKey(key));
  }

  /** Takes from several keys, each by itself, in one round trip. An error of one is in its place. */
  async takeMany(takes: readonly Keyed[]): Promise<(Decision | SluicegateError)[]> {
    if (!Array.isArray(takes)) throw new OperationError(`invalid keys \`${shown(takes)}\`: expected a list of objects with key, policy and cost`);
    const keys = takes.map((it) => this.keyed(it));
    const answers = await this.store.takeMany(keys);
    return answers.map((answer, index) => (answer instanceof SluicegateError ? answer : this.#decision(answer, [keys[index] as KeyedCost])));
  }

  /** Takes from all keys or from none. `decision.key` is the index of the binding key. */
  async takeAll(takes: readonly Keyed[]): Promise<Decision> {
    const { distinct, indices, places } = this.#distinct(takes);
    const answer = await this.#applyAll(distinct, { code: Code.Take, cost: 0, span: -1, id: NO_BYTES });
    return this.#decision(answer, distinct, takes.length > 1 ? { indices, places } : undefined);
  }

  /**
   * Holds units until they are settled, or for `ttl` milliseconds. Waits up to `timeout` until they are available. The hold may be denied:
   * see `hold.allowed`, or `hold.require()`.
   *
   * With `signal`, an abort ends the wait and leaves nothing behind; with an `id`, it may leave the hold open until that expires, because another
   * call may have the same id.
   */
  async hold(key: Key, policy: PolicyLike, options: HoldOptions = {}): Promise<Hold> {
    return this.#hold([{ key, policy, cost: given(options, HOLD).cost ?? 1 }], options);
  }

  /** Holds units of all keys or of none. `settle` takes one number, or one for each key. */
  async holdAll(holds: readonly Keyed[], options: Omit<HoldOptions, "cost"> = {}): Promise<Hold> {
    return this.#hold(holds, given(options, HOLD_ALL));
  }

  async #hold(holds: readonly Keyed[], { ttl, id, timeout = 0, signal, renew = false }: HoldOptions): Promise<Hold> {
    if (typeof renew !== "boolean") throw new OperationError(`invalid renew \`${shown(renew)}\`: expected true or false`);
    const { distinct: keys, indices, places } = this.#distinct(holds);
    const bytes = id === undefined ? crypto.getRandomValues(new Uint8Array(16)) : idBytes(id);
    const operation: Operation = { code: Code.Hold, cost: 0, span: ttl === undefined ? -1 : ttlMicros(ttl), id: bytes };
    const { store } = this;
    let isSent = false;
    const cancel = async (): Promise<void> => {
      // A hold with a given id may be that of another call: it expires.
      if (!isSent || id !== undefined) return;
      const settle = { code: Code.Settle, cost: 0, span: 0, id: bytes };
      await Promise.allSettled(keys.map(async (it) => store.apply(it.key, it.policy, settle)));
    };
    const how = { ...waiting(timeout, { signal }), mayBeOpen: id !== undefined };
    const answer = await this.#untilClosed(signal, async (ends) => {
      try {
        return await pending(store, keys, operation, { ...how, signal: ends }, () => {
          isSent = true;
        });
      } catch (error) {
        await cancel();
        throw error;
      }
    });
    if (answer.integers[0] !== 1 && answer.source !== "store") await cancel();
    const decision = this.#decision(answer, keys, holds.length > 1 ? { indices, places } : undefined);
    const lifetime = operation.span >= 0 ? operation.span : Math.min(...keys.map((it) => this.#ttl(it.policy)));
    return new Hold(decision, store, keys, operation, lifetime, renew);
  }

  /** Ends the hold `id` of a key, and charges the units used, or as many as were held. */
  async settle(key: Key, policy: PolicyLike, id: Key, used?: number): Promise<Decision> {
    const cost = used === undefined ? 0 : units("used", used);
    return this.#apply(key, policy, Code.Settle, cost, used === undefined ? -1 : 0, idBytes(id));
  }

  /** Prolongs the hold `id` of a key: it then expires `ttl` milliseconds from now. */
  async renew(key: Key, policy: PolicyLike, id: Key, ttl?: number): Promise<Decision> {
    return this.#apply(key, policy, Code.Renew, 0, ttl === undefined ? -1 : ttlMicros(ttl), idBytes(id));
  }

  /**
   * Ends the limiter: its connection is closed, and further calls and those that wait reject with `OperationError`. A client that was given stays
   * open. Holds that are open expire.
   */
  async close(): Promise<void> {
    const store = this.#store;
    this.#store = undefined;
    this.#open = closed;
    for (const ends of this.#waits.keys()) ends.abort(limiterIsClosed());
    // They give back what they have reserved.
    await Promise.allSettled(this.#waits.values());
    await store?.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal A key of a call, checked. */
  keyed(keyed: Keyed): KeyedCost {
    known("member", keyed, KEYED);
    const { key, policy, cost = 1 } = keyed;
    return { key: checkedKey(key), policy: this.policyId(policy), cost: units("cost", cost) };
  }

  /** @internal The identity of a policy of a call. */
  policyId(policy: PolicyLike): string {
    if (typeof policy === "string" && this.onError === undefined) return policy;
    if (policy instanceof Policy && (policy.onError !== undefined || this.onError === undefined)) return policy.id;
    return idOf(textOf(policy), this.onError);
  }

  #apply(key: Key, policy: PolicyLike, code: Code, cost: number, span = -1, id: Uint8Array = NO_BYTES): Maybe<Decision> {
    const policyId = this.policyId(policy);
    const operation = { code, cost: units("cost", cost), span, id };
    try {
      return then(this.store.apply(checkedKey(key), policyId, operation), ({ integers, source }) => new Decision(this.store.core, policyId, integers, source));
    } catch (error) {
      throw explained(error, key, policy);
    }
  }

  #applyAll(keys: readonly KeyedCost[], operation: Operation): Maybe<Answer> {
    const [first] = keys as [KeyedCost];
    return keys.length === 1 ? this.store.apply(first.key, first.policy, { ...operation, cost: first.cost }) : this.store.applyAll(keys, operation);
  }

  /** The keys of a call on several, each once, with their indices in the call, and which of them each key of the call is. */
  #distinct(keyed: readonly Keyed[]): { distinct: KeyedCost[] } & Places {
    if (!Array.isArray(keyed) || keyed.length === 0 || keyed.length > 8) {
      if (Array.isArray(keyed)) throw new OperationError(`invalid number of keys \`${keyed.length}\`: expected 1 to 8`);
      throw new OperationError(`invalid keys \`${shown(keyed)}\`: expected a list of objects with key, policy and cost`);
    }
    const keys = keyed.map((it) => this.keyed(it as Keyed));
    const seen = new Map<string, number>();
    const indices: number[] = [];
    const places = keys.map(({ key }, index) => {
      const bytes = typeof key === "string" ? new TextEncoder().encode(key) : key;
      // Text and bytes may be one key. In this encoding, each byte is a character.
      const text = new TextDecoder("latin1").decode(bytes);
      const place = seen.get(text) ?? indices.push(index) - 1;
      seen.set(text, place);
      return place;
    });
    return { distinct: indices.map((index) => keys[index] as KeyedCost), indices, places };
  }

  #decision(answer: Answer, keys: readonly KeyedCost[], several?: Places): Decision {
    const { core } = this.store;
    const { policy } = keys[answer.key] ?? (keys[0] as KeyedCost);
    if (several === undefined) return new Decision(core, policy, answer.integers, answer.source);
    // An answer about one key has no others.
    const all = answer.each.length > 0 ? answer.each : [answer.integers];
    const each = all.map((integers, index) => new Decision(core, (keys[index] as KeyedCost).policy, integers, answer.source));
    return new Decision(core, policy, answer.integers, answer.source, several.indices[answer.key], several.places.map((it) => each[it] as Decision));
  }

  /** The longest lifetime of a hold under a policy, in microseconds. */
  #ttl(policy: string): number {
    const ttl = policy.startsWith("@") ? -1 : this.store.core.wasm.hold_ttl(this.store.core.policy(policy));
    return ttl < 0 ? MAX_TTL_US : ttl;
  }
}

/** A limiter in this process. */
export class LocalLimiter extends Limiter {
  /** @internal */
  constructor(settings: MemorySettings = {}) {
    known("setting", settings, ["maxMemory", "clock"]);
    const { maxMemory = DEFAULT_MAX_MEMORY, clock = new SystemClock() } = settings;
    if (!Number.isInteger(maxMemory) || maxMemory < 0 || maxMemory > 2 ** 31) {
      throw new SettingsError(`invalid maxMemory \`${shown(maxMemory)}\`: expected up to 2147483648 bytes`);
    }
    setting("clock", clock, typeof clock?.now === "function", "an object with the method now, such as a ManualClock");
    super(() => new MemoryStore(maxMemory, clock));
  }

  /** `take`, at once. */
  takeSync(key: Key, policy: PolicyLike, cost = 1): Decision {
    const memory = this.store as MemoryStore;
    const policyId = this.policyId(policy);
    try {
      const source = memory.take(checkedKey(key), policyId, units("cost", cost));
      return new Decision(memory.core, policyId, memory.core.numbers, source);
    } catch (error) {
      throw explained(error, key, policy);
    }
  }

  override async take(key: Key, policy: PolicyLike, cost = 1): Promise<Decision> {
    return this.takeSync(key, policy, cost);
  }

  /** Keys and bytes in use. */
  usage(): Usage {
    return (this.store as MemoryStore).usage();
  }
}

/** Options with no other members than `names`. The absence of all is that of a member, which has an error of its own. */
function given<T extends object>(options: T | undefined, names: readonly string[]): T {
  if (options === undefined) return {} as T;
  known("option", options, names);
  return options;
}

/** The error of a call; that of an invalid policy beside a key that is one says that they may be swapped. */
function explained(error: unknown, key: Key, policy: PolicyLike): unknown {
  const isSwapped = error instanceof PolicyError && typeof key === "string" && isPolicy(key);
  if (!isSwapped) return error;
  return new PolicyError(`invalid policy \`${textOf(policy)}\`: the key \`${key}\` looks like a policy; expected the key first, then the policy`);
}

function closed(): never {
  throw limiterIsClosed();
}

function waiting(timeout: number, { jitter = 0, signal }: { jitter?: number; signal?: AbortSignal | undefined }): Waiting {
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw new OperationError(`invalid signal \`${shown(signal)}\`: expected an AbortSignal`);
  return { timeoutUs: micros("timeout", timeout), jitterUs: micros("jitter", jitter), signal, mayBeOpen: false };
}
