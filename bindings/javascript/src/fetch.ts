/**
 * A `fetch` that keeps to the limit of another service, from any number of processes.
 *
 *     const fetch = pacedFetch(limiter, "leaky-queue:27/1m"); // the service allows 30 a minute
 *     const response = await fetch("https://api.example.com/orders");
 *
 * Each request waits in the queue of its key, which is the host unless `key` says otherwise. A response with status 429 or 503 and `Retry-After`, or with
 * `RateLimit` or `X-RateLimit-*` fields that leave nothing, makes a pause of up to `maxPause` for all processes. Afterwards requests leave at the pace of
 * the policy again. A 429, and a 503 to an idempotent request, is sent again up to `retries` times in the same way; then, or if that would take longer than
 * `timeout`, the response is returned as it is. A request that would wait longer than `timeout` before it is first sent rejects at once with `Denied`; while the store makes
 * no decision, with a `StoreError`, unless `onError` is "allow" or "local".
 */

import { checkedLimiter, known, setting, shown } from "./arguments.js";
import type { Decision } from "./decision.js";
import { Denied, SettingsError, StoreError } from "./errors.js";
import type { Limiter } from "./limiter.js";
import { checkedRates, Policy, type PolicyLike } from "./policy.js";
import { sleep } from "./wait.js";

/** Options of `pacedFetch`. */
export interface PacedOptions {
  /** What shares the limit: by default the host. */
  readonly key?: (request: Request) => string;
  /** Milliseconds that a request may wait, each time that it is sent (30 000). */
  readonly timeout?: number;
  /** How often a request is sent again (2). */
  readonly retries?: number;
  /** Milliseconds of the longest pause (3 600 000). */
  readonly maxPause?: number;
  /** What sends the requests. */
  readonly fetch?: typeof fetch;
}

const DAY_MS = 86_400_000;
/** Beginnings and ends of the three forms of a date in HTTP (RFC 9110). */
const HTTP_DATE = /^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? .*\d( GMT)?$/;
/** Methods that a server may receive twice (RFC 9110). */
const IDEMPOTENT = ["DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"];

/** A `fetch` whose requests leave at the pace of a policy. @throws An option or the policy is invalid. */
export function pacedFetch(limiter: Limiter, policy: PolicyLike, options: PacedOptions = {}): typeof fetch {
  known("option", options, ["key", "timeout", "retries", "maxPause", "fetch"]);
  const { key = (request) => new URL(request.url).hostname, timeout = 30_000, retries = 2, maxPause = 3_600_000 } = options;
  for (const [name, value, most] of [["timeout", timeout, DAY_MS], ["retries", retries, 1000], ["maxPause", maxPause, DAY_MS]] as const) {
    const isWhole = name === "retries";
    if (!(typeof value === "number" && (!isWhole || Number.isInteger(value)) && value >= 0 && value <= most)) {
      throw new SettingsError(`invalid ${name} \`${shown(value)}\`: expected ${isWhole ? "a whole number from " : ""}0 to ${most}`);
    }
  }
  setting("key", key, typeof key === "function", "a function of the request, such as `(request) => request.url`");
  setting("fetch", options.fetch, typeof options.fetch === "function", "a function");
  const send = options.fetch ?? fetch;
  const pace = new Pace(limiter, policy, timeout, maxPause);
  return async (input, init) => {
    const request = new Request(input, init);
    const name = key(request);
    let response: Response | undefined;
    for (let sent = 1; ; sent += 1) {
      try {
        await pace.wait(name, request.signal);
      } catch (error) {
        if (error instanceof Denied && response !== undefined) return response;
        throw error;
      }
      // A body that is not read keeps its connection, and it may have no end.
      await response?.body?.cancel();
      response = await send(request.clone());
      await pace.startPause(name, response);
      const again = response.status === 429 || (response.status === 503 && IDEMPOTENT.includes(request.method));
      if (!again || sent > retries) return response;
    }
  };
}

/** Waits at the pace of a policy, and not during pauses. */
class Pace {
  readonly #limiter: Limiter;
  readonly #policy: Policy;
  readonly #timeout: number;
  readonly #maxPause: number;

  constructor(limiter: Limiter, policy: PolicyLike, timeout: number, maxPause: number) {
    checkedLimiter(limiter);
    const given = checkedRates(new Policy(policy));
    const onError = given.onError ?? limiter.onError ?? "deny";
    // Without the store, a denial is not a full queue: it is an error at once, and no reason to wait.
    this.#policy = new Policy(given, { onError: onError === "deny" ? "fail" : onError });
    this.#limiter = limiter;
    this.#timeout = timeout;
    this.#maxPause = maxPause;
  }

  /** Waits until a request may be sent. @throws {Denied} That takes too long. */
  async wait(key: string, signal: AbortSignal): Promise<void> {
    const end = performance.now() + this.#timeout;
    for (;;) {
      await this.#pauses(key, end, signal);
      const decision = await this.#limiter.wait(key, this.#policy, { timeout: Math.max(end - performance.now(), 0), signal });
      if (!decision.allowed) throw this.#tooLate(decision);
      // A pause may have begun: then the request queues again, so that all come at the pace of the policy.
      if ((await this.#limiter.peek(pauseKey(key), this.#pausePolicy(1))).allowed) return;
    }
  }

  #tooLate(denial: Decision): Denied {
    return new Denied(denial, `there is no turn within the timeout of ${this.#timeout} ms`);
  }

  async #pauses(key: string, end: number, signal: AbortSignal): Promise<void> {
    for (;;) {
      const paused = await this.#limiter.peek(pauseKey(key), this.#pausePolicy(1));
      if (paused.allowed) return;
      if (performance.now() + paused.resetAfterMs > end) throw this.#tooLate(paused);
      await sleep(paused.resetAfterMs, signal);
    }
  }

  /** Starts the pause that a response requests. Of several processes that see one response, one makes the pause: it takes what is missing, and fits once. */
  async startPause(key: string, response: Response): Promise<void> {
    const pause = Math.round(Math.min(requestedPause(response), this.#maxPause));
    if (pause <= 0) return;
    try {
      const open = await this.#limiter.peek(pauseKey(key), this.#pausePolicy(1));
      const lacks = pause - open.resetAfterMs;
      if (lacks > 0) await this.#limiter.take(pauseKey(key), this.#pausePolicy(pause), lacks);
    } catch (error) {
      // The response has arrived; the next request asks the store again.
      if (!(error instanceof StoreError)) throw error;
    }
  }

  /** The policy under which a pause of up to this many milliseconds fits: a unit is a millisecond. */
  #pausePolicy(ms: number): Policy {
    return new Policy(`gcra:1000/1s:burst=${Math.max(ms, 1)}`, { onError: this.#policy.onError });
  }
}

function pauseKey(key: string): string {
  return `pause:${key}`;
}

/** Milliseconds to pause after a response: by `Retry-After`, `RateLimit` or `X-RateLimit-*`; 0 without them. */
export function requestedPause({ status, headers }: Pick<Response, "status" | "headers">): number {
  if (status === 429 || status === 503) {
    const after = retryAfter(headers.get("retry-after")?.trim() ?? "");
    if (after !== undefined) return after;
  }
  return Math.max(field(headers.get("ratelimit") ?? ""), older(headers));
}

function retryAfter(value: string): number | undefined {
  if (/^\d{1,9}(\.\d{1,3})?$/.test(value)) return Number(value) * 1000;
  // `Date.parse` reads other text as a date, too, and the oldest form of HTTP, which names no time zone, as local time.
  if (!HTTP_DATE.test(value)) return undefined;
  const at = Date.parse(value.endsWith("GMT") ? value : `${value} GMT`);
  return Number.isNaN(at) ? undefined : Math.max(at - Date.now(), 0);
}

/** The longest `t` of the items of `RateLimit` without remaining units. */
function field(value: string): number {
  const spans = value.split(",").map((item) => {
    const members = Object.fromEntries([...item.matchAll(/;\s*([a-z]+)=(\d{1,9})/g)].map(([, name, number]) => [name, number]));
    return members["r"] === "0" && members["t"] !== undefined ? Number(members["t"]) * 1000 : 0;
  });
  return Math.max(...spans);
}

/** The span of `X-RateLimit-Reset`, which some count from the epoch, if nothing remains. */
function older(headers: Headers): number {
  const reset = headers.get("x-ratelimit-reset")?.trim() ?? "";
  if (headers.get("x-ratelimit-remaining")?.trim() !== "0" || !/^\d{1,12}(\.\d+)?$/.test(reset)) return 0;
  const seconds = Number(reset);
  return seconds > 1_000_000_000 ? Math.max(seconds * 1000 - Date.now(), 0) : seconds * 1000;
}
