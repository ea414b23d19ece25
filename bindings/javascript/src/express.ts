/**
 * Middleware for Express, and for whatever else passes requests of Node's `http` on, such as Connect.
 *
 *     app.use(rateLimit({ limiter, policy: "gcra:100/1m" }));
 *     app.post("/login", rateLimit({ limiter, policy: "sliding-log:5/1m" }), login);
 *
 * Without a `name`, a limit of a route is named after its method and path, one of an application "default", and one below a path after that path.
 */

import { shown } from "./arguments.js";
import { Rule, type Incoming, type RateLimitOptions } from "./http.js";

/** What the middleware needs of a request. */
export interface ExpressRequest {
  readonly method?: string | undefined;
  readonly baseUrl?: string;
  readonly route?: { readonly path?: unknown };
  readonly app?: { get?(name: string): unknown };
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
}

/** What it needs of a response. */
export interface ExpressResponse {
  statusCode: number;
  readonly headersSent?: boolean;
  setHeader(name: string, value: string): unknown;
  end(body: string): unknown;
}

/** Limits requests. */
export function rateLimit<R extends ExpressRequest>(
  options: RateLimitOptions<R>,
): (request: R, response: ExpressResponse, next: (error?: unknown) => void) => void {
  const rule = new Rule(options);
  return (request, response, next) => {
    const decided = async (): Promise<boolean> => {
      const { headers, rejection } = await rule.check(request, incoming(request));
      // Something else may have answered while the store decided, such as a middleware with a deadline.
      if (response.headersSent) return rejection === undefined;
      for (const [name, value] of Object.entries(rejection?.headers ?? headers())) response.setHeader(name, value);
      if (rejection === undefined) return true;
      response.statusCode = rejection.status;
      response.end(rejection.body);
      return false;
    };
    // What `next` throws is not passed to `next`.
    decided().then((passes) => (passes ? next() : undefined), next);
  };
}

function incoming(request: ExpressRequest): Incoming {
  const { method = "", baseUrl = "", route, headers, socket } = request;
  const place = route?.path === undefined ? baseUrl || "default" : `${method} ${baseUrl}${String(route.path)}`;
  return { request, place, peer: socket.remoteAddress, proxies: proxiesOf(request), header: (name) => joined(headers[name]) };
}

/** The setting of Express, or of Fastify (also in Nest), which says what proxies to trust. */
export function proxiesOf({ app, ips, server }: { app?: { get?(name: string): unknown }; ips?: unknown; server?: unknown }): string | undefined {
  // Fastify has the addresses of proxies if it trusts them, and Express always.
  if (server !== undefined) return ips === undefined ? undefined : "`trustProxy`";
  const trusted = app?.get?.("trust proxy");
  return trusted === undefined || trusted === false || trusted === 0 ? undefined : `\`trust proxy\` (${shown(trusted)})`;
}

/** All values of a header. */
export function joined(value: string | string[] | undefined): string | undefined {
  return Array.isArray(value) ? value.join(",") : value;
}
