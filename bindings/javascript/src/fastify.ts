/**
 * A plugin and hooks for Fastify.
 *
 *     app.register(rateLimit, { limiter, policy: "gcra:100/1m" });
 *     app.post("/login", { onRequest: limit({ limiter, policy: "sliding-log:5/1m" }) }, login);
 *
 * Without a `name`, the plugin's limit is named "default", or after the prefix under which it is registered; a hook's after the method and path of its route.
 */

import { joined, proxiesOf } from "./express.js";
import { Rule, type RateLimitOptions } from "./http.js";

/** What the hook needs of a request. */
export interface FastifyRequestLike {
  readonly method: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
  readonly routeOptions: { readonly url?: string | undefined };
  readonly ips?: unknown;
  readonly server?: unknown;
}

/** What it needs of a reply. */
export interface FastifyReplyLike {
  header(name: string, value: string): unknown;
  code(status: number): { send(body: string): unknown };
}

/** What the plugin needs of an instance. */
export interface FastifyLike {
  readonly prefix: string;
  addHook(name: "onRequest", hook: Hook): unknown;
}

/** A hook of Fastify. Its own types depend on the type of the server, which this package does not know. */
type Hook = (request: any, reply: any) => Promise<any>;

/** Limits the requests of one route, as its `onRequest`. */
export function limit<R extends FastifyRequestLike = FastifyRequestLike>(options: RateLimitOptions<R>): Hook {
  return hook(options, ({ method, routeOptions }) => `${method} ${routeOptions.url ?? ""}`);
}

/** Limits the requests of an instance, and of those that it has inside. */
export async function rateLimit<R extends FastifyRequestLike>(instance: FastifyLike, options: RateLimitOptions<R> & { prefix?: string }): Promise<void> {
  // Fastify passes the prefix of the registration with the options.
  const { prefix, ...rest } = options;
  const place = instance.prefix || prefix || "default";
  instance.addHook("onRequest", hook(rest as RateLimitOptions<R>, () => place));
}

// The hook applies to the instance that registers the plugin, and not only to the plugin.
Object.assign(rateLimit, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "sluicegate" });

function hook<R extends FastifyRequestLike>(options: RateLimitOptions<R>, placeOf: (request: R) => string): Hook {
  const rule = new Rule(options);
  return async (request: R, reply: FastifyReplyLike) => {
    const { headers, rejection } = await rule.check(request, {
      request,
      place: placeOf(request),
      peer: request.socket.remoteAddress,
      proxies: proxiesOf(request),
      header: (name) => joined(request.headers[name]),
    });
    for (const [name, value] of Object.entries(rejection?.headers ?? headers())) reply.header(name, value);
    return rejection === undefined ? undefined : reply.code(rejection.status).send(rejection.body);
  };
}
