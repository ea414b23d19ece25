/**
 * A store for @fastify/rate-limit.
 *
 *     app.register(rateLimit, { max: 100, timeWindow: "1 minute", store: storeOf(limiter) });
 */

import { checkedLimiter, setting } from "./arguments.js";
import { Windows } from "./counting.js";
import { SettingsError } from "./errors.js";
import type { Limiter } from "./limiter.js";

type Callback = (error: Error | null, result?: { current: number; ttl: number }) => void;

/** What is read of the options of the package and of a route. */
interface Options {
  readonly continueExceeding?: boolean;
  readonly exponentialBackoff?: boolean;
  readonly routeInfo?: { readonly method?: unknown; readonly url?: string };
}

/** What the package makes of its option `store`. */
export interface Store {
  incr(key: string, callback: Callback, timeWindow: number, max: number): void;
  read(key: string, callback: Callback, timeWindow: number, max?: number): void;
  child(routeOptions: object): Store;
}

/** The class to give to the package as `store`. Keys have the prefix before them. */
export function storeOf(limiter: Limiter, prefix = "fastify-rate-limit-"): new (options: object) => Store {
  checkedLimiter(limiter);
  setting("prefix", prefix, typeof prefix === "string", "a string");
  // Limits of `fastify.rateLimit()` and `createRateLimit()` have no route. Processes of one program make them in one order.
  let withoutRoute = 0;
  return class SluicegateStore implements Store {
    readonly #prefix: string;

    constructor(options: object, place = prefix) {
      for (const name of ["continueExceeding", "exponentialBackoff"] as const) {
        if ((options as Options)[name]) throw new SettingsError(`invalid option \`${name}\` with this store: expected windows that end when they say`);
      }
      this.#prefix = place;
    }

    incr(key: string, callback: Callback, timeWindow: number): void {
      report(new Windows(limiter, timeWindow).add(this.#prefix + key), callback);
    }

    read(key: string, callback: Callback, timeWindow: number): void {
      report(new Windows(limiter, timeWindow).read(this.#prefix + key), callback);
    }

    child(routeOptions: object): Store {
      const { method = "", url } = (routeOptions as Options).routeInfo ?? {};
      const place = url === undefined ? `#${(withoutRoute += 1)}` : `${String(method)}${url}`;
      return new SluicegateStore(routeOptions, `${this.#prefix}${place}-`);
    }
  };
}

function report(count: Promise<{ units: number; resetMs: number }>, callback: Callback): void {
  count.then(
    ({ units, resetMs }) => callback(null, { current: units, ttl: resetMs }),
    (error: Error) => callback(error),
  );
}
