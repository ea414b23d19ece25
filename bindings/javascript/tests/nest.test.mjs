// The guard, and the storage for @nestjs/throttler, on Nest.

import "reflect-metadata";

import assert from "node:assert/strict";
import { test } from "node:test";

import { Controller, Get, Module, UseGuards } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { Limiter, ManualClock, StoreUnavailable } from "sluicegate";
import { RateLimitGuard } from "sluicegate/nest";
import { SluicegateStorage } from "sluicegate/nestjs-throttler";
import { freePort } from "./servers.mjs";

/** What the decorators of TypeScript do. */
function decorate(target, name, ...decorators) {
  const descriptor = Object.getOwnPropertyDescriptor(target.prototype, name);
  for (const decorator of decorators.reverse()) decorator(target.prototype, name, descriptor);
}

/** An application with the routes `/` and `/login`, which has a guard of its own. */
async function application(t, guard, imports = [], providers = []) {
  class Shop {
    home() {
      return "home";
    }
    login() {
      return "welcome";
    }
  }
  decorate(Shop, "home", Get("/"));
  decorate(Shop, "login", Get("/login"), ...(guard ? [UseGuards(guard)] : []));
  Controller()(Shop);
  class Root {}
  Module({ imports, providers, controllers: [Shop] })(Root);
  const app = await NestFactory.create(Root, { logger: false });
  t.after(() => app.close());
  return app;
}

async function listening(app) {
  await app.listen(0, "127.0.0.1");
  const { port } = app.getHttpServer().address();
  return (path) => fetch(`http://127.0.0.1:${port}${path}`, { headers: { connection: "close" } });
}

test("nest_guard_limits_each_handler", async (t) => {
  const limiter = Limiter.inMemory({ clock: new ManualClock() });
  const app = await application(t, new RateLimitGuard({ limiter, policy: "fixed-window:1/1h" }));
  app.useGlobalGuards(new RateLimitGuard({ limiter, policy: "fixed-window:3/1h", name: "all" }));
  const ask = await listening(app);
  assert.equal((await ask("/")).headers.get("ratelimit"), '"all";r=2;t=3600');
  assert.equal((await ask("/login")).headers.get("ratelimit"), '"Shop.login";r=0;t=3600');
  const denied = await ask("/login");
  assert.deepEqual([denied.status, denied.headers.get("retry-after")], [429, "3600"]);
  assert.match(denied.headers.get("content-type"), /^application\/problem\+json/);
  assert.equal((await denied.json())["violated-policies"][0], "Shop.login");
});

test("nest_guard_needs_the_number_of_proxies_that_express_trusts", async (t) => {
  for (const [trustedHops, status] of [[undefined, 500], [1, 200]]) {
    const app = await application(t, new RateLimitGuard({ limiter: Limiter.inMemory(), policy: "fixed-window:1/1h", trustedHops }));
    app.getHttpAdapter().getInstance().set("trust proxy", 1);
    assert.equal((await (await listening(app))("/login")).status, status);
  }
});

test("nest_guard_of_other_contexts_is_an_error", async () => {
  const guard = new RateLimitGuard({ limiter: Limiter.inMemory(), policy: "fixed-window:1/1h" });
  await assert.rejects(guard.canActivate({ getType: () => "graphql" }), /invalid context `graphql`: expected http/);
});

test("throttler_storage_is_exact", async (t) => {
  const clock = new ManualClock();
  const limiter = Limiter.inMemory({ clock });
  const storage = new SluicegateStorage(limiter);
  const throttlers = [{ name: "default", ttl: 60_000, limit: 2 }];
  const ask = await listening(await application(t, undefined, [ThrottlerModule.forRoot({ throttlers, storage })], [{ provide: APP_GUARD, useClass: ThrottlerGuard }]));
  const statuses = async (count) => {
    const found = [];
    for (let turn = 0; turn < count; turn += 1) found.push((await ask("/")).status);
    return found;
  };
  assert.deepEqual(await statuses(3), [200, 200, 429]);
  const denied = await ask("/");
  assert.equal(denied.headers.get("retry-after"), "60");
  clock.advance(59_999);
  assert.deepEqual(await statuses(1), [429]);
  clock.advance(1);
  assert.deepEqual(await statuses(3), [200, 200, 429]);
});

test("throttler_storage_blocks_for_its_block_duration", async () => {
  const clock = new ManualClock();
  const storage = new SluicegateStorage(Limiter.inMemory({ clock }));
  const hit = () => storage.increment("k", 1000, 1, 5000, "default");
  assert.deepEqual(await hit(), { totalHits: 1, timeToExpire: 1, isBlocked: false, timeToBlockExpire: 0 });
  assert.deepEqual(await hit(), { totalHits: 2, timeToExpire: 1, isBlocked: true, timeToBlockExpire: 5 });
  clock.advance(4999);
  assert.equal((await hit()).isBlocked, true);
  clock.advance(1);
  assert.equal((await hit()).isBlocked, false);
});

test("throttler_storage_counts_from_zero_after_a_block_shorter_than_its_window", async () => {
  const clock = new ManualClock();
  const storage = new SluicegateStorage(Limiter.inMemory({ clock }));
  const hit = () => storage.increment("k", 10_000, 2, 5000, "default");
  const blocked = { totalHits: 3, isBlocked: true, timeToBlockExpire: 5 };
  assert.deepEqual([(await hit()).totalHits, (await hit()).totalHits], [1, 2]);
  assert.deepEqual(await hit().then(({ timeToExpire, ...rest }) => rest), blocked);
  clock.advance(4001);
  assert.deepEqual(await hit().then(({ timeToExpire, ...rest }) => rest), { ...blocked, timeToBlockExpire: 1 });
  clock.advance(999);
  // `Retry-After` was enough, and requests that were denied are not counted.
  assert.deepEqual([(await hit()).totalHits, (await hit()).totalHits, (await hit()).isBlocked], [1, 2, true]);
});

test("throttler_storage_follows_on_error_without_a_store", async () => {
  const url = `redis://127.0.0.1:${await freePort()}`;
  for (const blockDuration of [0, 5000]) {
    const hit = (onError) => new SluicegateStorage(Limiter.server(url, { onError })).increment("k", 1000, 1, blockDuration, "default");
    assert.equal((await hit("allow")).isBlocked, false);
    assert.deepEqual(await hit("deny").then((it) => [it.isBlocked, it.timeToBlockExpire]), [true, 1]);
    await assert.rejects(hit("fail"), StoreUnavailable);
  }
});
