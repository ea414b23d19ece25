/**
 * The core: one instance of the WebAssembly module, with its buffers. All that decides is in there (`crates/wasm`); this
 * class writes arguments and reads results.
 */

import { load } from "#module";
import { inMilliseconds, InvalidKey, OperationError, PolicyError } from "./errors.js";
import { partsOf } from "./policy.js";

/** A key: text or bytes, of 1 to 65 536 bytes. */
export type Key = string | Uint8Array;

/** Codes of operations, as `crates/wasm` has them. */
export const enum Code {
  Take = 0,
  Peek = 1,
  Charge = 2,
  Refund = 3,
  Reserve = 4,
  Reset = 5,
  Hold = 6,
  Settle = 7,
  Renew = 8,
}

/** An operation on a key. */
export interface Operation {
  readonly code: Code;
  readonly cost: number;
  /** The longest wait of a reserve or the lifetime of a hold, in microseconds; -1 if it is not given, and for a settle without a cost. */
  readonly span: number;
  /** The id of a hold, or no bytes. */
  readonly id: Uint8Array;
}

/** A key of a request, with the identity of its policy and its cost. */
export interface KeyedCost {
  readonly key: Key;
  readonly policy: string;
  readonly cost: number;
}

/** @internal What the module exports. */
interface Exports {
  readonly memory: WebAssembly.Memory;
  input(length: number): number;
  numbers(): number;
  text(): number;
  text_length(): number;
  policy(textLength: number, onErrorLength: number): number;
  free_policy(policy: number): void;
  policy_text(policy: number): void;
  explain(policy: number): void;
  hold_ttl(policy: number): number;
  open(maxBytes: number): void;
  apply(code: number, key: number, id: number, policy: number, cost: number, span: number, now: number): number;
  apply_all(code: number, count: number, id: number, span: number, now: number): number;
  reset(key: number, now: number): number;
  usage(): void;
  connect(maxKnownKeys: number, maxDenialCache: number, maxLocalBytes: number): void;
  denied(key: number, policy: number, cost: number, now: number): number;
  begin_query(key: number, now: number): number;
  record(query: number, key: number, policy: number, cost: number, replied: number, now: number): void;
  forget(key: number): void;
  reset_remote(key: number, now: number): void;
  follow_hold(code: number, key: number, id: number, policy: number, cost: number, span: number, now: number): void;
  fall_back(code: number, key: number, id: number, policy: number, cost: number, span: number, now: number): number;
  fall_back_all(code: number, count: number, id: number, span: number, now: number): number;
  combine(count: number): number;
  wait(code: number, count: number, id: number, span: number, timeout: number, mayBeOpen: number): number;
  poll(waiter: number, event: number, now: number): number;
  waiting_operation(waiter: number, index: number): number;
  cancel(waiter: number): number;
  headers(policy: number, name: number, style: number): void;
  problem(policy: number, name: number): void;
  unavailable_problem(): void;
  client_network(lines: number, peer: number, hops: number, forwarded: number, v4: number, v6: number): number;
}

/** Integers of a decision. */
export const INTEGERS = 7;
/** Index of the source, of the binding key, and of the decisions on several keys. */
const SOURCE = INTEGERS;
const KEY = SOURCE + 1;
const EACH = KEY + 1;
const MAX_KEYS = 8;
const NUMBERS = EACH + MAX_KEYS * INTEGERS;
const MAX_KEY = 65_536;
/** Statuses of the module that are errors. */
const POLICY_ERROR = -1;
const NO_FALLBACK = -3;
/** Maximum number of policies that an instance keeps. */
const MAX_POLICIES = 1024;

/** Sources of decisions, in the order of their numbers. */
export const SOURCES = ["store", "cache", "lease", "fallback", "table_full"] as const;
/** What decided. "table_full" is the full table in memory; "lease" does not occur in this package. */
export type Source = (typeof SOURCES)[number];

/** An answer of the module: the integers of the decision, and of several keys those of each. */
export interface Answer {
  readonly integers: readonly number[];
  readonly source: Source;
  /** The index of the binding key. */
  readonly key: number;
  /** The integers of each key; empty for one key. */
  readonly each: readonly (readonly number[])[];
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const NO_BYTES = new Uint8Array();

let compiled: WebAssembly.Module | undefined;

/** @internal One instance of the module. */
export class Core {
  readonly wasm: Exports;
  #bytes: Uint8Array;
  #numbers: Float64Array;
  #capacity = 1024;
  #at: number;
  readonly #policies = new Map<string, number>();
  #lastId = "";
  #lastPolicy = -1;

  constructor() {
    compiled ??= load();
    const random = (start: number, length: number): void => {
      crypto.getRandomValues(new Uint8Array(this.wasm.memory.buffer, start, length));
    };
    this.wasm = new WebAssembly.Instance(compiled, { host: { random } }).exports as unknown as Exports;
    this.#at = this.wasm.input(this.#capacity);
    this.#bytes = this.#inputView();
    this.#numbers = this.#numbersView();
  }

  /** The handle of the policy of an identity. @throws {PolicyError} The text is invalid. */
  policy(id: string): number {
    if (id === this.#lastId) return this.#lastPolicy;
    let handle = this.#policies.get(id);
    if (handle === undefined) {
      const [text, onError] = partsOf(id);
      const textLength = this.#write(text, 0);
      handle = this.wasm.policy(textLength, this.#write(onError, textLength));
      if (handle < 0) throw new PolicyError(this.text());
      if (this.#policies.size >= MAX_POLICIES) this.#freeOldest();
      this.#policies.set(id, handle);
    }
    this.#lastId = id;
    this.#lastPolicy = handle;
    return handle;
  }

  /** The text of a policy in its normal form. */
  normal(id: string): string {
    this.wasm.policy_text(this.policy(id));
    return this.text();
  }

  /** A policy in words. */
  explain(id: string): string {
    this.wasm.explain(this.policy(id));
    return this.text();
  }

  /** Writes a key to the input, and returns its length. @throws {InvalidKey} It is empty or too long. */
  key(key: Key): number {
    checkLength(key.length, typeof key === "string");
    const length = typeof key === "string" ? this.#write(key, 0) : this.#copy(key, 0);
    checkLength(length);
    return length;
  }

  /** Writes bytes behind the first `at` bytes of the input. */
  append(bytes: Uint8Array, at: number): number {
    return bytes.length === 0 ? 0 : this.#copy(bytes, at);
  }

  /** Writes text behind the first `at` bytes of the input, and returns its length. */
  write(text: string, at: number): number {
    return this.#write(text, at);
  }

  /** Writes the keys of a request for several, and the id behind them. @throws A key or policy is invalid. */
  keys(keys: readonly KeyedCost[], id: Uint8Array): void {
    // A new policy replaces the oldest, which must be none of these.
    keys.forEach((it) => this.#keep(it.policy));
    // Policies first, because a new one is parsed from the input.
    const policies = keys.map((it) => this.policy(it.policy));
    let at = 0;
    keys.forEach(({ key, cost }, index) => {
      checkLength(key.length, typeof key === "string");
      const bytes = typeof key === "string" ? encoder.encode(key) : key;
      checkLength(bytes.length);
      this.#reserve(at + 12 + bytes.length);
      const view = new DataView(this.#bytes.buffer, this.#at + at);
      [bytes.length, policies[index] ?? 0, cost].forEach((number, place) => view.setUint32(place * 4, number, true));
      this.#bytes.set(bytes, at + 12);
      at += 12 + bytes.length;
    });
    this.append(id, at);
  }

  /** The text of the last call. */
  text(): string {
    const { memory, text, text_length } = this.wasm;
    return decoder.decode(new Uint8Array(memory.buffer, text(), text_length()));
  }

  /** The buffer of numbers. It must not be kept. */
  get numbers(): Float64Array {
    if (this.#numbers.length === 0) this.#numbers = this.#numbersView();
    return this.#numbers;
  }

  /** Throws the error of a status, if it is one. Of no fallback it throws `unavailable`. */
  check(status: number, unavailable?: Error): void {
    if (status >= 0) return;
    if (status === NO_FALLBACK && unavailable !== undefined) throw unavailable;
    throw status === POLICY_ERROR ? new PolicyError(this.text()) : new OperationError(inMilliseconds(this.text()));
  }

  /** The source of the answer in the numbers. */
  get source(): Source {
    return SOURCES[this.numbers[SOURCE] ?? 0] ?? "store";
  }

  /** The answer in the numbers, on `count` keys. */
  answer(count = 1): Answer {
    const { numbers } = this;
    const each: number[][] = [];
    for (let key = 0; count > 1 && key < count; key += 1) {
      const start = EACH + key * INTEGERS;
      each.push([...numbers.subarray(start, start + INTEGERS)]);
    }
    return { integers: [...numbers.subarray(0, INTEGERS)], source: this.source, key: count > 1 ? (numbers[KEY] ?? 0) : 0, each };
  }

  /** Puts an answer into the numbers. */
  put({ integers, source, each }: Pick<Answer, "integers" | "each"> & { source?: Source }): void {
    const { numbers } = this;
    numbers.set(integers.slice(0, INTEGERS));
    // The core knows a full table as the store that it is.
    numbers[SOURCE] = source === "table_full" ? 0 : SOURCES.indexOf(source ?? "store");
    each.forEach((it, key) => numbers.set(it.slice(0, INTEGERS), EACH + key * INTEGERS));
  }

  #inputView(): Uint8Array {
    return new Uint8Array(this.wasm.memory.buffer, this.#at, this.#capacity);
  }

  #numbersView(): Float64Array {
    return new Float64Array(this.wasm.memory.buffer, this.wasm.numbers(), NUMBERS);
  }

  /** Makes the input at least that long. */
  #reserve(length: number): void {
    if (length > this.#capacity) {
      this.#capacity = length * 2;
      this.#at = this.wasm.input(this.#capacity);
      this.#bytes = this.#inputView();
    } else if (this.#bytes.length === 0) {
      // The memory has grown, which detaches views of it.
      this.#bytes = this.#inputView();
    }
  }

  #copy(bytes: Uint8Array, at: number): number {
    this.#reserve(at + bytes.length);
    this.#bytes.set(bytes, at);
    return bytes.length;
  }

  #write(text: string, at: number): number {
    const { length } = text;
    // A UTF-16 unit has up to three bytes.
    this.#reserve(at + length * 3);
    const bytes = this.#bytes;
    if (length > 64) return encoder.encodeInto(text, bytes.subarray(at)).written;
    for (let index = 0; index < length; index += 1) {
      const unit = text.charCodeAt(index);
      if (unit > 127) return encoder.encodeInto(text, bytes.subarray(at)).written;
      bytes[at + index] = unit;
    }
    return length;
  }

  /** Makes a policy the newest, if there is a handle of it. */
  #keep(id: string): void {
    const handle = this.#policies.get(id);
    if (handle === undefined) return;
    this.#policies.delete(id);
    this.#policies.set(id, handle);
  }

  #freeOldest(): void {
    for (const [id, handle] of this.#policies) {
      this.#policies.delete(id);
      this.wasm.free_policy(handle);
      return;
    }
  }
}

/** Checks the length of a key in bytes, or in the UTF-16 units of a text, which is at most that: a long one is not copied. */
function checkLength(length: number, isText = false): void {
  if (length > 0 && length <= MAX_KEY) return;
  throw new InvalidKey(`invalid key: expected 1 to ${MAX_KEY} bytes, found ${length}${isText && length > 0 ? " or more" : ""}`);
}

export { NO_BYTES };

let stateless: Core | undefined;

/** @internal An instance without state, for policies. */
export function shared(): Core {
  stateless ??= new Core();
  return stateless;
}
