/** The common part of the middleware of all web frameworks: keys, decisions, and responses. */

import { checkedLimiter, known, setting, shown, units } from "./arguments.js";
import { shared } from "./core.js";
import type { Decision } from "./decision.js";
import { InvalidKey, SettingsError, StoreError } from "./errors.js";
import type { Limiter } from "./limiter.js";
import { checkedRates, Policy, type PolicyLike } from "./policy.js";

/** Parts of a key; `undefined` is a part that the request does not have. */
export type Parts = string | undefined | readonly (string | undefined)[];

/** How requests are limited. */
export interface RateLimitOptions<R> {
  readonly limiter: Limiter;
  /** A policy, or a function of the request that returns one; `undefined` is no limit. */
  readonly policy: PolicyLike | ((request: R) => PolicyLike | undefined);
  /** The name of the policy, in keys and headers. Limits of one name share their usage. Without it, a limit is named after its place. */
  readonly name?: string;
  /** What is limited: by default the network of the client. All requests without a part (`undefined`) share one key. */
  readonly key?: (request: R) => Parts;
  /** Units of a request (1). */
  readonly cost?: number | ((request: R) => number);
  /**
   * The number of your proxies (0): as many entries of `header` are read, from its end, because clients choose the others. Each limit without a `key` needs it.
   * It must be given if the framework has a setting of its own, such as `trust proxy` of Express, which is not read.
   */
  readonly trustedHops?: number;
  readonly header?: "x-forwarded-for" | "forwarded";
  /** Bits of an address of IPv4 (32) and of IPv6 (64) that name one client. */
  readonly v4Prefix?: number;
  readonly v6Prefix?: number;
  /** The headers of responses: `RateLimit` and `RateLimit-Policy` ("ietf"), `X-RateLimit-*`, or none. A denial has `Retry-After`. */
  readonly headers?: "ietf" | "x-ratelimit" | "none";
}

const OPTIONS = ["limiter", "policy", "name", "key", "cost", "trustedHops", "header", "v4Prefix", "v6Prefix", "headers"];

/** What a framework knows about a request. */
export interface Incoming {
  /** The object that lives as long as the request. */
  readonly request: object;
  /** The place of the limit: its name if it has no other. */
  readonly place: string;
  /** The address of the connection. */
  readonly peer: string | undefined;
  /** The setting of the framework for proxies, if it has one and that is set: its name and value. */
  readonly proxies?: string | undefined;
  /** All values of a header, joined as HTTP joins them. */
  header(name: string): string | undefined;
}

/** The response to a request that does not pass. */
export interface Rejection {
  readonly status: 422 | 429 | 503;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** What to do with a request: its response has these headers, or is this rejection. */
export interface Outcome {
  /** Of all limits that have decided on the request so far, those of the tightest. */
  headers(): Readonly<Record<string, string>>;
  readonly rejection: Rejection | undefined;
}

interface Decided {
  readonly name: string;
  readonly decision: Decision;
}

const NONE = (): Record<string, string> => ({});
const PASSES: Outcome = { headers: NONE, rejection: undefined };

/** The limits of each request in progress by place, and the decisions on it. */
const requests = new WeakMap<object, { places: Map<string, object[]>; decisions: Decided[] }>();

/** A limit of requests. */
export class Rule<R> {
  readonly #options: RateLimitOptions<R>;
  readonly #policy: RateLimitOptions<R>["policy"];

  /** @throws An option is unknown or invalid. */
  constructor(options: RateLimitOptions<R>) {
    known("option", options, OPTIONS);
    const { limiter, policy, cost = 1, trustedHops = 0, header = "x-forwarded-for", v4Prefix = 32, v6Prefix = 64 } = options;
    checkedLimiter(limiter);
    setting("name", options.name, typeof options.name === "string", "a string");
    setting("key", options.key, typeof options.key === "function", "a function of the request, such as `(request) => request.user.id`");
    setting("header", header, header === "x-forwarded-for" || header === "forwarded", "x-forwarded-for or forwarded");
    const { headers } = options;
    setting("headers", headers, headers === "ietf" || headers === "x-ratelimit" || headers === "none", "ietf, x-ratelimit or none");
    for (const [name, value, most] of [["trustedHops", trustedHops, 1000], ["v4Prefix", v4Prefix, 32], ["v6Prefix", v6Prefix, 128]] as const) {
      if (!Number.isInteger(value) || value < 0 || value > most) throw new SettingsError(`invalid ${name} \`${shown(value)}\`: expected 0 to ${most}`);
    }
    if (typeof cost !== "function") units("cost", cost, SettingsError);
    this.#options = options;
    // What is invalid is an error here, not at the first request.
    this.#policy = typeof policy === "function" ? policy : checkedRates(new Policy(policy));
  }

  /** Decides on a request. */
  async check(request: R, incoming: Incoming): Promise<Outcome> {
    const { limiter, key, cost = 1, headers: style = "ietf" } = this.#options;
    const given = this.#policy;
    const policy = typeof given === "function" ? given(request) : given;
    if (policy === undefined || policy === null) return PASSES;
    const name = this.#name(incoming);
    const parts = key === undefined ? this.#client(incoming) : key(request);
    let decision: Decision;
    try {
      decision = await limiter.take(keyOf(name, parts), policy, typeof cost === "number" ? cost : cost(request));
    } catch (error) {
      if (error instanceof InvalidKey) return { headers: NONE, rejection: invalid(error) };
      if (error instanceof StoreError) return { headers: NONE, rejection: unavailable(undefined) };
      throw error;
    }
    // A denial without the store contains no usage.
    if (!decision.allowed && decision.source === "fallback") return { headers: NONE, rejection: unavailable(decision) };
    entryOf(incoming.request).decisions.push({ name, decision });
    const headers = (): Record<string, string> => (style === "none" ? {} : tightest(incoming.request, style));
    if (decision.allowed) return { headers, rejection: undefined };
    const own = decision.headers(name)["retry-after"];
    const retry = own === undefined ? {} : { "retry-after": own };
    return { headers, rejection: { status: 429, headers: { ...PROBLEM, ...headers(), ...retry }, body: decision.problem(name) } };
  }

  /** The name of the rule for a request: of several without a name in one place, the second has `#2` behind it. */
  #name({ request, place }: Incoming): string {
    if (this.#options.name !== undefined) return this.#options.name;
    const { places } = entryOf(request);
    const rules = places.get(place) ?? [];
    if (!rules.includes(this)) rules.push(this);
    places.set(place, rules);
    const index = rules.indexOf(this);
    return index === 0 ? place : `${place}#${index + 1}`;
  }

  /** The network of the client. */
  #client({ peer = "", proxies, header }: Incoming): string | undefined {
    if (proxies !== undefined && this.#options.trustedHops === undefined) {
      throw new SettingsError(`missing trustedHops beside ${proxies}, which the limit does not read: expected the number of your proxies, or 0`);
    }
    const { trustedHops = 0, header: name = "x-forwarded-for", v4Prefix = 32, v6Prefix = 64 } = this.#options;
    const core = shared();
    const lines = trustedHops === 0 ? "" : (header(name) ?? "");
    const length = core.write(lines, 0);
    const found = core.wasm.client_network(length, core.write(peer, length), trustedHops, name === "forwarded" ? 1 : 0, v4Prefix, v6Prefix);
    return found === 1 ? core.text() : undefined;
  }
}

const PROBLEM = { "content-type": "application/problem+json", "cache-control": "no-store" };

function unavailable(denial: Decision | undefined): Rejection {
  const core = shared();
  core.wasm.unavailable_problem();
  const retry = denial?.retryAfterMs === undefined ? {} : { "retry-after": String(Math.max(Math.ceil(denial.retryAfterMs / 1000), 1)) };
  return { status: 503, headers: { ...PROBLEM, ...retry }, body: core.text() };
}

function invalid(error: InvalidKey): Rejection {
  const problem = { type: "about:blank", title: "Unprocessable Content", status: 422, detail: error.message };
  return { status: 422, headers: PROBLEM, body: JSON.stringify(problem) };
}

function entryOf(request: object): { places: Map<string, object[]>; decisions: Decided[] } {
  let entry = requests.get(request);
  if (entry === undefined) requests.set(request, (entry = { places: new Map(), decisions: [] }));
  return entry;
}

/** The headers of one of the decisions on a request: the one that denies, or else the one with the fewest units remaining. */
function tightest(request: object, style: "ietf" | "x-ratelimit"): Record<string, string> {
  const { name, decision } = entryOf(request).decisions.reduce((one, other) => (tightness(other) < tightness(one) ? other : one));
  const headers = decision.headers(name, style);
  // A rejection has its own.
  delete headers["retry-after"];
  return headers;
}

/** Ordered from tight to loose. A decision without the store knows no usage. */
function tightness({ decision }: Decided): number {
  if (!decision.allowed) return -1;
  return decision.source === "fallback" ? Infinity : decision.remaining;
}

/**
 * The key of a request in the store: the name and the parts as netstrings. No two combinations are equal, and a part that is missing equals
 * no value. The middleware for Tower and Python makes the same keys.
 */
export function keyOf(name: string, parts: Parts): string {
  const all: readonly (string | undefined)[] = Array.isArray(parts) ? parts : [parts];
  return netstring(name) + all.map((part) => (part === undefined ? "-," : netstring(part))).join("");
}

const encoder = new TextEncoder();

function netstring(part: string): string {
  if (typeof part !== "string") throw new SettingsError(`invalid key \`${String(part)}\` of a request: expected a string, or a list of them`);
  return `${encoder.encode(part).length}:${part},`;
}
