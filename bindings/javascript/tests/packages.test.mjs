// Stores and the interface of other packages, with the real packages.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, describe, test } from "node:test";

import express from "express";
import expressRateLimit, { MemoryStore } from "express-rate-limit";
import Fastify from "fastify";
import fastifyRateLimit from "@fastify/rate-limit";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { Redis } from "ioredis";
import { RateLimiterMemory } from "rate-limiter-flexible";
import { Denied, Limiter, ManualClock, Policy, SettingsError, StoreUnavailable } from "sluicegate";
import { SluicegateStore } from "sluicegate/express-rate-limit";
import { storeOf } from "sluicegate/fastify-rate-limit";
import { SluicegateStore as HonoStore } from "sluicegate/hono-rate-limiter";
import { pacedFetch } from "sluicegate/fetch";
import { RateLimiter, RateLimiterRes } from "sluicegate/rate-limiter-flexible";
import { requestedPause } from "../dist/esm/fetch.js";
import { freePort, startRedis } from "./servers.mjs";

let server;
let redis;
before(async () => {
  server = await startRedis();
  redis = new Redis({ port: server.port });
});
after(async () => {
  redis.disconnect();
  await server.stop();
});

/** A limiter in memory with a clock, and one on Redis with its own. */
const LIMITERS = {
  memory() {
    const clock = new ManualClock();
    return { limiter: Limiter.inMemory({ clock }), clock };
  },
  redis() {
    const clock = new ManualClock();
    return { limiter: Limiter.redis(redis, { clock, timeout: 5000 }), clock };
  },
};

for (const [place, open] of Object.entries(LIMITERS)) {
  test(`express_rate_limit_counts_in_${place}`, async (t) => {
    const { limiter, clock } = open();
    const app = express();
    app.use(expressRateLimit({ windowMs: 60_000, limit: 2, standardHeaders: "draft-8", store: new SluicegateStore({ limiter, prefix: "erl:" }), keyGenerator: () => "client" }));
    app.get("/", (_, response) => response.send("home"));
    const http = createServer(app).listen(0, "127.0.0.1");
    await once(http, "listening");
    t.after(() => http.close());
    const status = async () => (await fetch(`http://127.0.0.1:${http.address().port}/`, { headers: { connection: "close" } })).status;
    assert.deepEqual([await status(), await status(), await status()], [200, 200, 429]);
    clock.advance(60_000);
    assert.equal(await status(), 200);
  });

  test(`express_rate_limit_store_counts_as_its_own_in_${place}`, async () => {
    const { limiter } = open();
    const [own, other] = [new SluicegateStore({ limiter, prefix: "same:" }), new MemoryStore()];
    for (const store of [own, other]) await store.init({ windowMs: 60_000 });
    const steps = [["increment", "a"], ["increment", "a"], ["get", "a"], ["decrement", "a"], ["get", "a"], ["increment", "b"], ["resetKey", "a"], ["increment", "a"], ["get", "c"], ["resetAll"], ["get", "b"]];
    for (const [call, key] of steps) {
      const [ours, theirs] = await Promise.all([own, other].map((store) => store[call](key)));
      assert.equal(ours?.totalHits, theirs?.totalHits, `${call} ${key}`);
    }
    other.shutdown();
  });

  test(`hono_rate_limiter_counts_in_${place}`, async () => {
    const { limiter, clock } = open();
    const app = new Hono();
    app.use(rateLimiter({ windowMs: 60_000, limit: 2, store: new HonoStore({ limiter, prefix: "hono:" }), keyGenerator: () => "client" }));
    app.get("/", (context) => context.text("home"));
    const status = async () => (await app.request("/")).status;
    assert.deepEqual([await status(), await status(), await status()], [200, 200, 429]);
    clock.advance(60_000);
    assert.equal(await status(), 200);
  });

  test(`fastify_rate_limit_counts_in_${place}`, async (t) => {
    const { limiter, clock } = open();
    const app = Fastify();
    t.after(() => app.close());
    await app.register(fastifyRateLimit, { max: 2, timeWindow: 60_000, store: storeOf(limiter, `f-${place}-`) });
    app.get("/", () => "home");
    app.get("/login", { config: { rateLimit: { max: 1, timeWindow: 1000 } } }, () => "welcome");
    const status = async (url) => (await app.inject(url)).statusCode;
    assert.deepEqual([await status("/"), await status("/"), await status("/")], [200, 200, 429]);
    assert.deepEqual([await status("/login"), await status("/login")], [200, 429]);
    clock.advance(1000);
    assert.deepEqual([await status("/login"), await status("/")], [200, 429]);
    clock.advance(59_000);
    assert.equal(await status("/"), 200);
    assert.throws(() => new (storeOf(limiter))({ continueExceeding: true }), /invalid option `continueExceeding`/);
  });

  test(`fastify_rate_limit_counts_each_limit_without_a_route_by_itself_in_${place}`, async (t) => {
    const { limiter } = open();
    // Two processes of one program.
    const apps = await Promise.all([1, 2].map(async () => {
      const app = Fastify();
      t.after(() => app.close());
      await app.register(fastifyRateLimit, { global: false, store: storeOf(limiter, `h-${place}-`) });
      app.get("/orders", { preHandler: app.rateLimit({ max: 2, timeWindow: 60_000 }) }, () => "orders");
      app.get("/login", { preHandler: app.rateLimit({ max: 1, timeWindow: 1000 }) }, () => "welcome");
      return app;
    }));
    const statuses = [];
    for (const [app, url] of [[0, "/orders"], [0, "/login"], [1, "/orders"], [1, "/login"], [0, "/orders"]]) statuses.push((await apps[app].inject(url)).statusCode);
    assert.deepEqual(statuses, [200, 200, 200, 429, 429]);
  });

  test(`rate_limiter_flexible_interface_counts_as_the_package_in_${place}`, async () => {
    const { limiter } = open();
    const [own, other] = [new RateLimiter({ limiter, points: 3, duration: 60 }), new RateLimiterMemory({ points: 3, duration: 60 })];
    const calls = [["get", "a"], ["consume", "a"], ["consume", "a", 2], ["consume", "a"], ["get", "a"], ["penalty", "b", 2], ["reward", "b", 1], ["get", "b"], ["consume", "b", 2], ["set", "c", 2, 60], ["get", "c"], ["block", "d", 30], ["consume", "d"], ["delete", "d"], ["delete", "d"], ["consume", "d"], ["delete", "a"], ["get", "a"]];
    for (const [call, ...words] of calls) {
      const [ours, theirs] = await Promise.all(
        [own, other].map(async (it) => {
          const answer = await it[call](...words).then((value) => [true, value], (value) => [false, value]);
          const [isResolved, value] = answer;
          if (value === null || typeof value === "boolean") return [isResolved, value];
          return [isResolved, value.remainingPoints, value.consumedPoints, Math.round(value.msBeforeNext / 1000)];
        }),
      );
      // A blocked key keeps the number of points that has blocked it.
      const compared = call === "consume" && words[0] === "d" ? [ours, theirs].map((it) => it.slice(0, 2)) : [ours, theirs];
      assert.deepEqual(compared[0], compared[1], `${call} ${words}`);
    }
    await assert.rejects(own.consume("x", 4), (error) => error instanceof RateLimiterRes && error.consumedPoints === 4);
    await assert.rejects(own.set("x", 1, 5), /invalid secDuration `5`: expected the duration of the limiter, 60/);
  });
}

test("rate_limiter_flexible_interface_blocks_for_its_duration", async () => {
  const { limiter, clock } = LIMITERS.memory();
  const own = new RateLimiter({ limiter, points: 1, duration: 1, blockDuration: 10 });
  await own.consume("a");
  await assert.rejects(own.consume("a"), (error) => error.msBeforeNext === 10_000);
  clock.advance(9999);
  await assert.rejects(own.consume("a"), (error) => error.msBeforeNext === 1);
  clock.advance(1);
  assert.equal((await own.consume("a")).remainingPoints, 0);
});

test("rate_limiter_flexible_interface_does_not_ignore_arguments", async () => {
  const { limiter } = LIMITERS.memory();
  const own = new RateLimiter({ limiter, points: 1, duration: 5 });
  for (const call of ["consume", "penalty", "reward"]) await assert.rejects(own[call]("a", 1, { customDuration: 1 }), /invalid customDuration `1`: expected the duration/);
  for (const points of [undefined, Number.NaN, -1, "5"]) assert.throws(() => new RateLimiter({ limiter, points, duration: 1 }), /invalid points/);
  assert.throws(() => new RateLimiter({ limiter, points: 1, duration: 1, blockDuration: Number.NaN }), /invalid blockDuration `NaN`/);
});

test("rate_limiter_flexible_interface_without_an_end_has_no_time_before_the_next_points", async () => {
  const { limiter, clock } = LIMITERS.memory();
  const forever = new RateLimiter({ limiter, points: 2, duration: 0 });
  assert.equal((await forever.consume("a")).msBeforeNext, -1);
  assert.equal((await forever.set("b", 5, 0)).msBeforeNext, -1);
  const own = new RateLimiter({ limiter, points: 1, duration: 1 });
  assert.deepEqual(await own.block("c", 0).then((it) => [it.msBeforeNext, it.consumedPoints]), [-1, 2]);
  clock.advance(86_400_000);
  assert.deepEqual(await own.get("c").then((it) => [it.msBeforeNext, it.consumedPoints]), [-1, 2]);
  await own.block("d", 300 * 86_400);
  clock.advance(299 * 86_400_000);
  assert.equal((await own.get("d")).msBeforeNext, 86_400_000);
});

test("rate_limiter_flexible_interface_blocks_before_the_next_call", async () => {
  for (const open of Object.values(LIMITERS)) {
    const own = new RateLimiter({ limiter: open().limiter, points: 1, duration: 1, keyPrefix: "turn" });
    const blocks = own.block("a", 2);
    await assert.rejects(own.consume("a"), (error) => error instanceof RateLimiterRes && error.msBeforeNext === 2000);
    await blocks;
    const sets = own.set("b", 1, 1);
    await assert.rejects(own.consume("b"), (error) => error instanceof RateLimiterRes && error.consumedPoints === 2);
    await sets;
  }
});

test("stores_reject_without_a_store", async () => {
  const closed = new Redis({ port: server.port, lazyConnect: true });
  closed.disconnect();
  for (const onError of ["deny", "allow", "local"]) {
    const limiter = Limiter.redis(closed, { onError });
    const own = new RateLimiter({ limiter, points: 1, duration: 1 });
    const store = new SluicegateStore({ limiter });
    for (const call of [() => own.consume("a"), () => own.get("a"), () => own.block("a", 1), () => store.get("a"), () => store.increment("a"), () => store.resetKey("a")]) {
      await assert.rejects(call(), StoreUnavailable);
    }
    const read = new Promise((resolve, reject) => new (storeOf(limiter))({}).read("a", (error, result) => (error ? reject(error) : resolve(result)), 1000));
    await assert.rejects(read, StoreUnavailable);
  }
});

test("express_rate_limit_store_shares_its_hits_if_another_has_its_prefix", async () => {
  const [limiter, other] = [Limiter.inMemory(), Limiter.inMemory()];
  const [one, two] = [new SluicegateStore({ limiter }), new SluicegateStore({ limiter, prefix: "login:" })];
  assert.deepEqual([one, two, new SluicegateStore({ limiter: other })].map((it) => it.localKeys), [true, true, true]);
  const three = new SluicegateStore({ limiter });
  assert.deepEqual([one, two, three].map((it) => it.localKeys), [false, true, false]);
  assert.equal(new SluicegateStore({ limiter: Limiter.redis(redis) }).localKeys, false);
  assert.throws(() => new SluicegateStore({ limiter, resetExpiryOnChange: true }), /unknown option `resetExpiryOnChange`: expected one of limiter, prefix/);
});

describe("fetch", () => {
  test("paced_fetch_obeys_a_pause_in_all_processes", async () => {
    const other = new Redis({ port: server.port });
    const limits = [redis, other].map((client) => Limiter.redis(client, { keyPrefix: "paced:", timeout: 5000 }));
    const times = [];
    const send = async () => {
      times.push(performance.now());
      return times.length === 1 ? new Response("wait", { status: 429, headers: { "retry-after": "0.3" } }) : new Response("fine");
    };
    const [one, two] = limits.map((limiter) => pacedFetch(limiter, "gcra:100/1s:burst=100", { fetch: send }));
    const first = one("https://api.example.com/orders");
    while (times.length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
    // The pause has been made once the peek of its key says so.
    while ((await limits[1].peek("pause:api.example.com", "gcra:1000/1s:burst=1")).allowed) await new Promise((resolve) => setTimeout(resolve, 1));
    const second = await two("https://api.example.com/orders");
    assert.deepEqual([(await first).status, second.status, times.length], [200, 200, 3]);
    assert.ok(times[1] - times[0] >= 290 && times[2] - times[0] >= 290, `${times}`);
    other.disconnect();
  });

  test("paced_fetch_returns_the_response_after_its_retries", async () => {
    let sent = 0;
    const send = async () => ((sent += 1), new Response(null, { status: 429 }));
    const paced = pacedFetch(Limiter.inMemory(), "gcra:1000/1s", { fetch: send, retries: 2 });
    assert.equal((await paced("https://api.example.com/", { method: "POST", body: "x" })).status, 429);
    assert.equal(sent, 3);
    sent = 0;
    const failing = pacedFetch(Limiter.inMemory(), "gcra:1000/1s", { fetch: async () => ((sent += 1), new Response(null, { status: 503 })) });
    await failing("https://api.example.com/", { method: "POST", body: "x" });
    assert.equal(sent, 1);
    await assert.rejects(pacedFetch(Limiter.inMemory(), "gcra:1/1h", { timeout: 10 })("https://api.example.com/", { signal: AbortSignal.abort(new Error("enough")) }), /enough/);
  });

  test("paced_fetch_without_a_turn_in_time_says_so", async () => {
    const paced = pacedFetch(Limiter.inMemory({ clock: new ManualClock() }), "leaky-queue:1/1s", { timeout: 50, fetch: async () => new Response("fine") });
    await paced("https://api.example.com/");
    const error = await paced("https://api.example.com/").catch((it) => it);
    assert.ok(error instanceof Denied);
    assert.equal(error.message, `denied: there is no turn within the timeout of 50 ms; retry after ${error.retryAfterMs} ms`);
    // It waited up to 50 ms of the second.
    assert.ok(error.retryAfterMs >= 950 && error.retryAfterMs <= 1000, `${error.retryAfterMs}`);
  });

  test("paced_fetch_invalid_options_are_named_at_once", () => {
    const limiter = Limiter.inMemory();
    const named = (text, ...given) => assert.throws(() => pacedFetch(...given), (error) => error instanceof SettingsError && error.message.includes(text));
    named("invalid policy `concurrency:3/1m`: expected one without `concurrency`, whose units are held", limiter, "concurrency:3/1m");
    named("missing limiter", undefined, "gcra:1/1s");
    named('invalid timeout `"5s"`: expected 0 to 86400000', limiter, "gcra:1/1s", { timeout: "5s" });
    named("invalid retries `1.5`: expected a whole number from 0 to 1000", limiter, "gcra:1/1s", { retries: 1.5 });
    named('invalid key `"host"`: expected a function', limiter, "gcra:1/1s", { key: "host" });
    named("unknown option `maxRetries`", limiter, "gcra:1/1s", { maxRetries: 1 });
  });

  test("paced_fetch_without_a_store_follows_on_error_of_the_policy_or_the_limiter", async () => {
    const url = `redis://127.0.0.1:${await freePort()}`;
    const ask = (ofLimiter, ofPolicy) => {
      const policy = new Policy("gcra:1000/1s", { onError: ofPolicy });
      return pacedFetch(Limiter.server(url, ofLimiter ? { onError: ofLimiter } : {}), policy, { fetch: async () => new Response("fine") })("https://api.example.com/");
    };
    for (const given of [["allow"], ["local"], ["deny", "allow"], [undefined, "local"]]) assert.equal((await ask(...given)).status, 200, `${given}`);
    for (const given of [[], ["deny"], ["fail"], ["allow", "deny"], ["allow", "fail"]]) await assert.rejects(ask(...given), StoreUnavailable, `${given}`);
  });

  test("paced_fetch_does_not_read_a_response_that_it_does_not_return", async () => {
    let [sent, cancelled] = [0, 0];
    // A body without an end.
    const endless = () => new ReadableStream({ pull: (controller) => controller.enqueue(new Uint8Array(1024)), cancel: () => void (cancelled += 1) });
    const send = async () => ((sent += 1), sent === 1 ? new Response(endless(), { status: 429 }) : new Response("fine"));
    const response = await pacedFetch(Limiter.inMemory(), "gcra:1000/1s", { fetch: send })("https://api.example.com/");
    assert.deepEqual([await response.text(), sent, cancelled], ["fine", 2, 1]);
  });

  test("requested_pause_reads_dates_of_http_and_no_other_text", () => {
    const pause = (value) => requestedPause({ status: 429, headers: new Headers({ "retry-after": value, ratelimit: '"a";r=0;t=3' }) });
    for (const garbage of ["-5", "retry 5", "5 minutes", "99991231", "1e3", "12345678901", "2030-01-01", ""]) {
      assert.equal(pause(garbage), garbage === "99991231" ? 99_991_231_000 : 3000, garbage);
    }
    const at = new Date(Math.ceil(Date.now() / 1000) * 1000 + 60_000);
    const [day, date, month, year, time] = at.toUTCString().replace(",", "").split(" ");
    for (const form of [at.toUTCString(), `${day}day, ${date}-${month}-${year.slice(2)} ${time} GMT`, `${day} ${month} ${String(Number(date)).padStart(2)} ${time} ${year}`]) {
      assert.ok(Math.abs(pause(form) - 60_000) < 3000, `${form}: ${pause(form)}`);
    }
    assert.equal(pause("Sun, 06 Nov 1994 08:49:37 GMT"), 0);
  });

  test("requested_pause_reads_all_headers", () => {
    const pause = (status, headers) => requestedPause({ status, headers: new Headers(headers) });
    assert.equal(pause(429, { "retry-after": "2" }), 2000);
    assert.equal(pause(200, { "retry-after": "2" }), 0);
    const at = pause(503, { "retry-after": new Date(Date.now() + 5000).toUTCString() });
    assert.ok(at > 3000 && at <= 5000);
    assert.equal(pause(200, { ratelimit: '"a";r=0;t=3, "b";r=0;t=7, "c";r=1;t=9' }), 7000);
    assert.equal(pause(200, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": "4" }), 4000);
    assert.equal(pause(200, { "x-ratelimit-remaining": "1", "x-ratelimit-reset": "4" }), 0);
  });
});
