/**
 * Middleware for Hono, on Node and in workers.
 *
 *     app.use(rateLimit({ limiter, policy: "gcra:100/1m" }));
 *     app.post("/login", rateLimit({ limiter, policy: "sliding-log:5/1m" }), login);
 *
 * Without a `name`, a limit of a route is named after its method and path, and one of `app.use` "default", or after its path. The address of the connection
 * is that of the adapter for Node; in Cloudflare's workers it is `CF-Connecting-IP`, which Cloudflare sets.
 */

import { Rule, type RateLimitOptions } from "./http.js";

/** What the middleware needs of a context. */
export interface HonoContext {
  readonly req: {
    readonly method: string;
    readonly routePath: string;
    readonly raw: Request;
    header(name: string): string | undefined;
  };
  // What the adapter for Node passes.
  readonly env: unknown;
  header(name: string, value: string): void;
}

/** Limits requests. */
export function rateLimit<C extends HonoContext>(options: RateLimitOptions<C>): (context: C, next: () => Promise<void>) => Promise<Response | void> {
  const rule = new Rule(options);
  return async (context, next) => {
    const { req } = context;
    const { headers, rejection } = await rule.check(context, {
      request: req.raw,
      place: placeOf(req.method, req.routePath),
      peer: peerOf(context),
      header: (name) => req.header(name),
    });
    if (rejection !== undefined) return new Response(rejection.body, { status: rejection.status, headers: rejection.headers });
    await next();
    for (const [name, value] of Object.entries(headers())) context.header(name, value);
  };
}

function placeOf(method: string, path: string): string {
  return path.endsWith("*") ? path.replace(/\/?\*$/, "") || "default" : `${method} ${path}`;
}

function peerOf({ env, req }: HonoContext): string | undefined {
  const node = env as { incoming?: { socket?: { remoteAddress?: string } }; requestIP?: (request: Request) => { address: string } | null } | undefined;
  if (node?.incoming?.socket !== undefined) return node.incoming.socket.remoteAddress;
  if (typeof node?.requestIP === "function") return node.requestIP(req.raw)?.address;
  return isWorker() ? req.header("cf-connecting-ip") : undefined;
}

/** Only there no client can set `CF-Connecting-IP`. */
function isWorker(): boolean {
  return globalThis.navigator?.userAgent === "Cloudflare-Workers";
}
