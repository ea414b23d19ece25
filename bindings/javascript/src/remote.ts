/** A store that processes share: Redis or Valkey through a client, or a Sluicegate server. */

import { known, micros, setting } from "./arguments.js";
import { Breaker } from "./breaker.js";
import { transportOf, type RedisClient, type Transport, type Word } from "./clients.js";
import { SystemClock, type Clock } from "./clock.js";
import { Deadlines } from "./deadlines.js";
import { allOf, answerOf, answerOfAll, commandOf, failureOf, resetOf, wordsOf, type Command, type Dialect } from "./commands.js";
import { Code, Core, NO_BYTES, type Answer, type Key, type KeyedCost, type Operation } from "./core.js";
import { limiterIsClosed, OperationError, SettingsError, SluicegateError, StoreError, StoreTimeout, StoreUnavailable } from "./errors.js";
import { checkOnError, partsOf, type OnError } from "./policy.js";
import { connect } from "./resp.js";
import type { Maybe, Store } from "./store.js";

/** Settings of a limiter with a store that processes share. */
export interface RemoteSettings {
  /** The longest time of a decision in milliseconds (500). */
  readonly timeout?: number;
  /** The prefix of each key in the store. */
  readonly keyPrefix?: string;
  /** How long a denial is repeated without the store in milliseconds, at most (1000). */
  readonly maxDenialCache?: number;
  /** The answer while the store is unavailable ("deny"), for policies that do not say. */
  readonly onError?: OnError;
  /**
   * Called when the store becomes unavailable, once for each outage, with the first error. Without it, a line on `console.warn` says so, at most one each
   * 10 s.
   */
  readonly onUnavailable?: (error: StoreError) => void;
  /** Called when the outage ends: with a reply after a second without failures. */
  readonly onAvailable?: () => void;
  /** Use functions, also if the store has the Sluicegate module. */
  readonly useModule?: boolean;
  /** A clock instead of that of the store, which needs functions: for tests. */
  readonly clock?: Clock;
}

const NAMES = ["timeout", "keyPrefix", "maxDenialCache", "onError", "onUnavailable", "onAvailable", "useModule", "clock"];
const REDIS_PORT = 6379;
const SERVER_PORT = 6380;
const DEFAULT_TIMEOUT = 500;
const DEFAULT_DENIAL_CACHE = 1000;
/** Milliseconds between two warnings of one limiter. */
const WARN_EVERY = 10_000;
/** Keys whose last replies are remembered, and bytes of local states. */
const MAX_KNOWN_KEYS = 65_536;
const MAX_LOCAL_BYTES = 16 << 20;
/** Times that an operation on a hold is sent: it counts once however often it arrives. */
const MAX_ATTEMPTS = 3;
/** The only keys for which the store takes a time of the client. */
const TEST_PREFIX = "sg:test:";
/** Microseconds after which to try again after a fallback denial. */
const RETRY_AFTER = 100_000;

/** @internal A store elsewhere. It has its own core, for the denial cache, the fallback and the policies. */
export class RemoteStore implements Store {
  #core: Core | undefined;
  readonly #transport: Transport;
  readonly #settings: Required<Pick<RemoteSettings, "timeout" | "keyPrefix" | "maxDenialCache">> & { clock: Clock | undefined };
  readonly #breaker: Breaker;
  readonly #deadlines = new Deadlines();
  readonly #late = (): Error => new StoreTimeout(`the store is unavailable: no reply within ${this.#settings.timeout} ms`);
  /** The time of the caches, which is that of this process. */
  readonly #clock: Clock = new SystemClock();
  #dialect: Dialect;
  /** The load of the library in progress, and the number of those that have ended: many commands of one moment find it missing. */
  #loading: Promise<void> | undefined;
  #loads = 0;
  /** Whether the store is a Sluicegate server, which has no functions. */
  readonly #isServer: boolean;
  #isClosed = false;

  constructor(transport: Transport, isServer: boolean, settings: RemoteSettings) {
    known("setting", settings, NAMES);
    const { timeout = DEFAULT_TIMEOUT, keyPrefix = "", maxDenialCache = DEFAULT_DENIAL_CACHE, useModule = true, clock } = settings;
    const { onError, onUnavailable = warning(onError), onAvailable = () => undefined } = settings;
    micros("timeout", timeout, SettingsError);
    micros("maxDenialCache", maxDenialCache, SettingsError);
    setting("keyPrefix", keyPrefix, typeof keyPrefix === "string", "a string");
    setting("useModule", useModule, typeof useModule === "boolean", "true or false");
    setting("clock", clock, typeof clock?.now === "function", "an object with the method now, such as a ManualClock");
    setting("onUnavailable", onUnavailable, typeof onUnavailable === "function", "a function of the error");
    setting("onAvailable", onAvailable, typeof onAvailable === "function", "a function");
    checkOnError(onError);
    if (clock !== undefined && keyPrefix !== "") {
      throw new SettingsError(`invalid keyPrefix \`${keyPrefix}\` together with a clock: its keys have the prefix \`${TEST_PREFIX}\``);
    }
    this.#transport = transport;
    this.#isServer = isServer;
    this.#settings = { timeout, keyPrefix: clock === undefined ? keyPrefix : TEST_PREFIX, maxDenialCache, clock };
    // Outside of the request in progress, whose decision stands if they throw.
    this.#breaker = new Breaker((error) => queueMicrotask(() => onUnavailable(error)), () => queueMicrotask(() => onAvailable()));
    this.#dialect = isServer || useModule ? "commands" : "functions";
  }

  /** The store behind a client. */
  static of(client: RedisClient | string, settings: RemoteSettings): RemoteStore {
    return new RemoteStore(typeof client === "string" ? connect(client, REDIS_PORT) : transportOf(client), false, settings);
  }

  /** The Sluicegate server at a URL. */
  static at(url: string, settings: RemoteSettings): RemoteStore {
    return new RemoteStore(connect(url, SERVER_PORT), true, settings);
  }

  get core(): Core {
    if (this.#core === undefined) {
      this.#core = new Core();
      // With a test clock there is no cache, because the two clocks differ.
      const { clock, maxDenialCache } = this.#settings;
      this.#core.wasm.connect(MAX_KNOWN_KEYS, clock === undefined ? micros("maxDenialCache", maxDenialCache) : 0, MAX_LOCAL_BYTES);
    }
    return this.#core;
  }

  get unavailable(): string | undefined {
    return this.#breaker.error?.message;
  }

  apply(key: Key, policy: string, operation: Operation): Maybe<Answer> {
    const { core } = this;
    const name = this.#key(key);
    if (policy.startsWith("@")) return this.#named(name, policy, operation);
    if (operation.code === Code.Take && operation.cost > 0) {
      const handle = core.policy(policy);
      if (core.wasm.denied(core.key(name), handle, operation.cost, this.#clock.now()) === 1) return core.answer();
    } else {
      core.policy(policy);
      core.key(name);
    }
    return this.#apply(name, policy, operation);
  }

  async applyAll(given: readonly KeyedCost[], operation: Operation): Promise<Answer> {
    const { core } = this;
    const keys = given.map((it) => ({ ...it, key: this.#key(it.key) }));
    const opens = operation.code === Code.Hold;
    if (operation.code === Code.Peek) return this.#peekAll(keys);
    keys.forEach((it) => it.policy.startsWith("@") || core.policy(it.policy));
    const queries = keys.map((it) => core.wasm.begin_query(core.key(it.key), this.#clock.now()));
    const finish = (answer: Answer | undefined): void => {
      keys.forEach(({ key, policy, cost }, index) => {
        const integers = answer?.each[index] ?? [];
        // An allowed key of a denied take was not charged.
        const tells = answer !== undefined && !policy.startsWith("@") && (answer.integers[0] === 1 || integers[0] === 0);
        const recorded = tells && (!opens || isLocal(policy)) && cost > 0;
        this.#record(queries[index] ?? 0, key, policy, opens ? 0 : cost, recorded ? integers : undefined);
        if (opens) core.wasm.forget(core.key(key));
      });
    };
    try {
      const reply = await this.#send(allOf(named(keys), operation), opens ? MAX_ATTEMPTS : 1);
      const answer = answerOfAll(reply, keys.length);
      finish(answer);
      return answer;
    } catch (error) {
      finish(undefined);
      if (!isUnavailable(error) || keys.some((it) => it.policy.startsWith("@"))) throw error;
      core.keys(keys, operation.id);
      core.check(core.wasm.fall_back_all(operation.code, keys.length, operation.id.length, operation.span, this.#clock.now()), error);
      return core.answer(keys.length);
    }
  }

  takeMany(takes: readonly KeyedCost[]): Promise<(Answer | SluicegateError)[]> {
    // Clients send commands of one turn as one pipeline.
    return Promise.all(
      takes.map(async ({ key, policy, cost }) => {
        try {
          return await this.apply(key, policy, { code: Code.Take, cost, span: -1, id: NO_BYTES });
        } catch (error) {
          if (error instanceof SluicegateError) return error;
          throw error;
        }
      }),
    );
  }

  async reset(key: Key): Promise<boolean> {
    const { core } = this;
    const name = this.#key(key);
    core.wasm.forget(core.key(name));
    try {
      const reply = await this.#send(resetOf(name), 1);
      core.wasm.reset_remote(core.key(name), this.#clock.now());
      return Number(Array.isArray(reply) ? reply[0] : reply) === 1;
    } finally {
      core.wasm.forget(core.key(name));
    }
  }

  close(): void {
    this.#isClosed = true;
    this.#transport.close();
  }

  /** Applies an operation in the store, or by the fallback while it is unavailable. */
  async #apply(key: Word, policy: string, operation: Operation): Promise<Answer> {
    const { core } = this;
    const { code, cost, span, id } = operation;
    const isHold = code >= Code.Hold;
    const forgets = isHold || code === Code.Refund;
    if (isHold) {
      const handle = core.policy(policy);
      const length = core.key(key);
      core.wasm.follow_hold(code, length, core.append(id, length), handle, cost, span, this.#clock.now());
    }
    if (forgets) core.wasm.forget(core.key(key));
    let query = core.wasm.begin_query(core.key(key), this.#clock.now());
    let integers: readonly number[] | undefined;
    try {
      const answer = answerOf(await this.#send(commandOf(key, partsOf(policy)[0], operation), isHold ? MAX_ATTEMPTS : 1));
      if (recordsReply(code, policy)) ({ integers } = answer);
      return answer;
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      const handle = core.policy(policy);
      const length = core.key(key);
      core.check(core.wasm.fall_back(code, length, core.append(id, length), handle, cost, span, this.#clock.now()), error);
      return core.answer();
    } finally {
      if (forgets) {
        core.wasm.forget(core.key(key));
        // The reply is newer than what was forgotten.
        this.#record(query, key, policy, 0, undefined);
        query = core.wasm.begin_query(core.key(key), this.#clock.now());
      }
      this.#record(query, key, policy, code === Code.Take ? cost : 0, integers);
    }
  }

  /** Applies an operation under a policy that the server knows by name: nothing of it is cached, because it may change. */
  async #named(key: Word, id: string, operation: Operation): Promise<Answer> {
    const [policy, onError] = partsOf(id);
    if (onError.startsWith("local")) {
      throw new OperationError(`invalid onError \`${onError}\` under the named policy \`${policy}\`: expected deny, allow or fail`);
    }
    this.core.key(key);
    const { code } = operation;
    try {
      return answerOf(await this.#send(commandOf(key, policy, operation), code >= Code.Hold ? MAX_ATTEMPTS : 1));
    } catch (error) {
      const hasFallback = code === Code.Take || code === Code.Peek || code === Code.Reserve || code === Code.Hold;
      if (!isUnavailable(error) || !hasFallback || onError === "fail") throw error;
      const integers = onError === "allow" ? [1, 0, 0, 0, RETRY_AFTER, 0, 0] : [0, 0, 0, RETRY_AFTER, RETRY_AFTER, 0, 0];
      return { integers, source: "fallback", key: 0, each: [] };
    }
  }

  /** Peeks at each key; there is no command for all. */
  async #peekAll(keys: readonly KeyedCost[]): Promise<Answer> {
    const { core } = this;
    const peeks = keys.map(async ({ key, policy, cost }) => this.#apply(key, policy, { code: Code.Peek, cost, span: -1, id: NO_BYTES }));
    const answers = await Promise.all(peeks);
    const source = answers.find((it) => it.source !== "store")?.source ?? "store";
    core.put({ integers: [], each: answers.map((it) => it.integers), source });
    core.check(core.wasm.combine(keys.length));
    return core.answer(keys.length);
  }

  /** Ends a query, and records the decision in its reply if there is one. */
  #record(query: number, key: Word, policy: string, cost: number, integers: readonly number[] | undefined): void {
    const { core } = this;
    const handle = integers === undefined ? 0 : core.policy(policy);
    const length = core.key(key);
    if (integers !== undefined) core.put({ integers, each: [] });
    core.wasm.record(query, length, handle, cost, integers === undefined ? 0 : 1, this.#clock.now());
  }

  /** The key in the store. */
  #key(key: Key): Word {
    const { keyPrefix } = this.#settings;
    if (keyPrefix === "" || key.length === 0) return key;
    if (typeof key === "string") return keyPrefix + key;
    const prefix = new TextEncoder().encode(keyPrefix);
    const whole = new Uint8Array(prefix.length + key.length);
    whole.set(prefix);
    whole.set(key, prefix.length);
    return whole;
  }

  /** Sends a command up to `attempts` times within the deadline. */
  async #send(command: Command, attempts: number): Promise<unknown> {
    const end = performance.now() + this.#settings.timeout;
    for (let attempt = 1; ; attempt += 1) {
      try {
        if (this.#isClosed) throw limiterIsClosed();
        if (!this.#breaker.admits()) throw new StoreUnavailable("the store is unavailable: it has not answered several requests");
        const reply = await this.#deadlines.within(this.#call(command), end, this.#late);
        this.#breaker.succeeded();
        return reply;
      } catch (error) {
        if (this.#isClosed) throw limiterIsClosed();
        if (!isUnavailable(error)) {
          this.#breaker.succeeded();
          throw error;
        }
        this.#breaker.failed(error);
        if (attempt >= attempts || performance.now() >= end) throw error;
      }
    }
  }

  /** Sends a command in the dialect that the store has. */
  async #call(command: Command): Promise<unknown> {
    const [key = ""] = command.keys;
    for (let attempt = 1; ; attempt += 1) {
      const dialect = this.#dialect;
      const loads = this.#loads;
      try {
        return await this.#transport.send(wordsOf(command, dialect, this.#settings.clock?.now()), key);
      } catch (error) {
        const failure = failureOf(error);
        if (failure.kind === "error") throw failure.error;
        if (this.#isServer || attempt > 3) throw new StoreUnavailable(`the store is unavailable: ${String((error as Error).message)}`);
        if (failure.kind === "unknown function") await (loads === this.#loads ? (this.#loading ??= this.#install()) : undefined);
        else this.#dialect = dialect === "commands" ? "functions" : dialect;
      }
    }
  }

  /** Loads the library of functions. */
  async #install(): Promise<void> {
    const { LIBRARY } = await import("#library");
    try {
      await this.#transport.everywhere(["FUNCTION", "LOAD", LIBRARY]);
    } catch (error) {
      const text = (error as Error).message;
      // Another process was faster.
      if (/already exists/.test(text)) return;
      throw new StoreUnavailable(`the store has no Sluicegate functions: run \`sluicegate redis install URL\` (${text})`);
    } finally {
      this.#loading = undefined;
      this.#loads += 1;
    }
  }
}

/** Says that the store is unavailable. */
function warning(onError: OnError = "deny"): (error: StoreError) => void {
  let next = 0;
  return ({ message }) => {
    if (performance.now() < next) return;
    next = performance.now() + WARN_EVERY;
    console.warn(`sluicegate: ${message}; until it answers, onError decides (\`${onError}\` for policies without their own)`);
  };
}

function isUnavailable(error: unknown): error is StoreError {
  return error instanceof StoreUnavailable || error instanceof StoreTimeout;
}

function isLocal(policy: string): boolean {
  return partsOf(policy)[1].startsWith("local");
}

/** Whether the reply to an operation is recorded: denials of takes, and usage for the local fallback. */
function recordsReply(code: Code, policy: string): boolean {
  if (code === Code.Take || code === Code.Charge || code === Code.Reserve) return true;
  return (code === Code.Peek || code >= Code.Hold) && isLocal(policy);
}

/** The keys with the texts of their policies, as the store knows them. */
function named(keys: readonly KeyedCost[]): KeyedCost[] {
  return keys.map((it) => ({ ...it, policy: partsOf(it.policy)[0] }));
}
