/**
 * A guard for Nest, on Express and on Fastify.
 *
 *     app.useGlobalGuards(new RateLimitGuard({ limiter, policy: "gcra:100/1m" }));
 *     @UseGuards(new RateLimitGuard({ limiter, policy: "sliding-log:5/1m" }))
 *
 * Without a `name`, a limit is named after the controller and method that it protects: each handler has a count of its own.
 */

import { HttpException, type CanActivate, type ExecutionContext } from "@nestjs/common";

import { SettingsError } from "./errors.js";
import { joined, proxiesOf, type ExpressRequest } from "./express.js";
import { Rule, type RateLimitOptions } from "./http.js";

/** Limits the requests of handlers, and answers those that it denies. */
export class RateLimitGuard<R extends ExpressRequest = ExpressRequest> implements CanActivate {
  readonly #rule: Rule<R>;

  constructor(options: RateLimitOptions<R>) {
    this.#rule = new Rule(options);
  }

  /** Whether the request may pass. @throws {HttpException} It is rejected. */
  async canActivate(context: ExecutionContext): Promise<boolean> {
    const kind = context.getType<string>();
    if (kind !== "http") throw new SettingsError(`invalid context \`${kind}\`: expected http`);
    const http = context.switchToHttp();
    const request = http.getRequest<R>();
    const response = http.getResponse<{ setHeader?(name: string, value: string): void; header(name: string, value: string): void }>();
    const { headers, rejection } = await this.#rule.check(request, {
      request,
      place: `${context.getClass().name}.${context.getHandler().name}`,
      peer: request.socket.remoteAddress,
      proxies: proxiesOf(request),
      header: (name) => joined(request.headers[name]),
    });
    for (const [name, value] of Object.entries(rejection?.headers ?? headers())) response.header(name, value);
    if (rejection !== undefined) throw new HttpException(JSON.parse(rejection.body) as Record<string, unknown>, rejection.status);
    return true;
  }
}
