/** Decisions. */

import { setting } from "./arguments.js";
import type { Core, Source } from "./core.js";
import { partsOf } from "./policy.js";

/** The method that `console.log` calls in Node, Bun and Deno. */
const INSPECT: unique symbol = Symbol.for("nodejs.util.inspect.custom") as never;

/** The answer to a request. Times are whole milliseconds, rounded up, so that a caller that waits is never early. */
export class Decision {
  /** Whether the request is allowed. */
  readonly allowed: boolean;
  /** Units that the binding limit admits at once. */
  readonly limit: number;
  /** Requests of cost 1 that would pass now. */
  readonly remaining: number;
  /** Index of the binding limit of the policy, from 0. */
  readonly binding: number;
  readonly #retry: number;
  readonly #reset: number;
  readonly #delay: number;
  readonly #core: Core;
  readonly #policy: string;

  /** @internal */
  constructor(
    core: Core,
    /** The identity of the policy. */
    policy: string,
    integers: ArrayLike<number>,
    /** What decided: the store, the denial cache, the fallback because the store is unavailable, or the table in memory because it is full. */
    readonly source: Source = "store",
    /** For a decision on several keys: index of the binding key, from 0. */
    readonly key: number | undefined = undefined,
    /** For a decision on several keys: the decision on each. */
    readonly each: readonly Decision[] = NONE,
  ) {
    this.#core = core;
    this.#policy = policy;
    this.allowed = integers[0] === 1;
    this.limit = integers[1] as number;
    this.remaining = integers[2] as number;
    this.#retry = integers[3] as number;
    this.#reset = integers[4] as number;
    this.#delay = integers[5] as number;
    this.binding = integers[6] as number;
  }

  /** The time after which the request passes; `undefined` if it is allowed, or never passes. */
  get retryAfterMs(): number | undefined {
    return this.allowed || this.#retry < 0 ? undefined : Math.ceil(this.#retry / 1000);
  }

  /** Whether the request never passes, because its cost is more than the policy admits. */
  get never(): boolean {
    return !this.allowed && this.#retry < 0;
  }

  /** The time until nothing is in use, under all limits of the policy. */
  get resetAfterMs(): number {
    return Math.ceil(this.#reset / 1000);
  }

  /** The time after which the units that were taken are for use: of a reservation, or in a queue. */
  get delayMs(): number {
    return Math.ceil(this.#delay / 1000);
  }

  /** The text of the policy. */
  get policy(): string {
    return partsOf(this.#policy)[0];
  }

  /**
   * The seven integers of the protocols: allowed, limit, remaining, retry after (-1: never), reset after, delay, binding; times in
   * microseconds.
   */
  integers(): number[] {
    return [Number(this.allowed), this.limit, this.remaining, this.#retry, this.#reset, this.#delay, this.binding];
  }

  /**
   * Headers for a response, under the name of the policy: `RateLimit-Policy` and `RateLimit`, or with `"x-ratelimit"` the older
   * `X-RateLimit-*`; and `Retry-After` if denied. The names are in lower case.
   */
  headers(name = "default", style: "ietf" | "x-ratelimit" = "ietf"): Record<string, string> {
    setting("style of headers", style, style === "ietf" || style === "x-ratelimit", "ietf or x-ratelimit");
    const headers: Record<string, string> = {};
    const handle = this.#put();
    this.#core.wasm.headers(handle, this.#core.write(name, 0), style === "ietf" ? 0 : 1);
    for (const line of this.#core.text().split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) headers[line.slice(0, at)] = line.slice(at + 2);
    }
    return headers;
  }

  /** The problem document (RFC 9457) of a denial, as JSON: the body of a response with status 429. */
  problem(name = "default"): string {
    const handle = this.#put();
    this.#core.wasm.problem(handle, this.#core.write(name, 0));
    return this.#core.text();
  }

  /** The members, for `JSON.stringify`. */
  toJSON(): Record<string, unknown> {
    const { allowed, limit, remaining, retryAfterMs, resetAfterMs, delayMs, source } = this;
    return { allowed, limit, remaining, retryAfterMs, resetAfterMs, delayMs, source };
  }

  /** What `console.log` prints. @internal */
  [INSPECT](_depth: number, options: object, inspect?: (value: unknown, options: object) => string): unknown {
    const { key, each, policy } = this;
    const members: [string, unknown][] = Object.entries({ ...this.toJSON(), never: this.never || undefined, policy, key, each: each.length > 0 ? each : undefined });
    const shown = Object.fromEntries(members.filter(([, value]) => value !== undefined));
    return inspect === undefined ? shown : `Decision ${inspect(shown, options)}`;
  }

  /** Puts the decision into the buffer of the core, and returns the handle of its policy. */
  #put(): number {
    // What a name of a server stands for is not known here, except for the capacity of its binding limit.
    const named = this.#policy.startsWith("@");
    const policy = this.#core.policy(named ? `fixed-window:${Math.max(this.limit, 1)}/1ms` : this.#policy);
    this.#core.put({ integers: named ? [...this.integers().slice(0, 6), 0] : this.integers(), each: NONE });
    return policy;
  }
}

const NONE: readonly never[] = [];
