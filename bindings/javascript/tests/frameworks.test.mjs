// Middleware on the real frameworks.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { serve } from "@hono/node-server";
import { Limiter, ManualClock, SettingsError } from "sluicegate";
import { rateLimit as forExpress } from "sluicegate/express";
import { limit as forFastifyRoute, rateLimit as forFastify } from "sluicegate/fastify";
import { rateLimit as forHono } from "sluicegate/hono";
import { keyOf } from "../dist/esm/http.js";
import { freePort } from "./servers.mjs";

/** Applications by framework: each limits all requests to 3 an hour, and `/login` to 1, with `options` for both. */
const APPLICATIONS = {
  async express(limiter, options) {
    const app = express();
    app.use(forExpress({ limiter, policy: "fixed-window:3/1h", ...options }));
    app.get("/", (_, response) => response.send("home"));
    app.get("/login", forExpress({ limiter, policy: "fixed-window:1/1h", ...options }), (_, response) => response.send("welcome"));
    const server = createServer(app).listen(0, "127.0.0.1");
    await once(server, "listening");
    return { port: server.address().port, close: () => server.close() };
  },
  async fastify(limiter, options) {
    const app = Fastify();
    await app.register(forFastify, { limiter, policy: "fixed-window:3/1h", ...options });
    app.get("/", () => "home");
    app.get("/login", { onRequest: forFastifyRoute({ limiter, policy: "fixed-window:1/1h", ...options }) }, () => "welcome");
    await app.listen({ port: 0, host: "127.0.0.1" });
    return { port: app.server.address().port, close: () => app.close() };
  },
  async hono(limiter, options) {
    const app = new Hono();
    app.use(forHono({ limiter, policy: "fixed-window:3/1h", ...options }));
    app.get("/", (context) => context.text("home"));
    app.get("/login", forHono({ limiter, policy: "fixed-window:1/1h", ...options }), (context) => context.text("welcome"));
    const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
    await once(server, "listening");
    return { port: server.address().port, close: () => server.close() };
  },
};

for (const [framework, open] of Object.entries(APPLICATIONS)) {
  const ask = (port, path = "/", headers = {}) => fetch(`http://127.0.0.1:${port}${path}`, { headers: { connection: "close", ...headers } });
  const started = async (t, options = {}, limiter = Limiter.inMemory({ clock: new ManualClock() })) => {
    const { port, close } = await open(limiter, options);
    t.after(close);
    return { port, limiter };
  };

  test(`${framework}_answers_with_headers_and_problem`, async (t) => {
    const { port } = await started(t);
    const first = await ask(port);
    assert.equal(first.status, 200);
    assert.equal(await first.text(), "home");
    assert.equal(first.headers.get("ratelimit-policy"), '"default";q=3;w=3600');
    assert.equal(first.headers.get("ratelimit"), '"default";r=2;t=3600');
    assert.equal(first.headers.get("retry-after"), null);
    // The limit of the route has a count of its own, and is the tightest.
    const login = await ask(port, "/login");
    assert.equal(login.headers.get("ratelimit"), '"GET /login";r=0;t=3600');
    const denied = await ask(port, "/login");
    assert.equal(denied.status, 429);
    assert.match(denied.headers.get("content-type"), /^application\/problem\+json/);
    assert.equal(denied.headers.get("cache-control"), "no-store");
    assert.equal(denied.headers.get("retry-after"), "3600");
    assert.equal((await denied.json())["violated-policies"][0], "GET /login");
    const over = await ask(port);
    assert.equal(over.status, 429);
    assert.equal((await over.json())["violated-policies"][0], "default");
  });

  test(`${framework}_limits_clients_behind_trusted_proxies_by_network`, async (t) => {
    const { port, limiter } = await started(t, { trustedHops: 1, name: "all" });
    const from = (address) => ask(port, "/", { "x-forwarded-for": address });
    // Clients choose the entries before the last.
    assert.equal((await from("8.8.8.8, 2001:db8::7")).status, 200);
    assert.equal((await from("2001:db8::8")).headers.get("ratelimit"), '"all";r=1;t=3600');
    assert.equal((await from("192.0.2.1")).headers.get("ratelimit"), '"all";r=2;t=3600');
    // The key is that of the middleware in other languages.
    assert.equal((await limiter.peek(keyOf("all", "2001:db8::/64"), "fixed-window:3/1h")).remaining, 1);
    assert.equal(keyOf("all", "2001:db8::/64"), "3:all,13:2001:db8::/64,");
  });

  test(`${framework}_without_proxies_believes_no_header`, async (t) => {
    const { port } = await started(t);
    await ask(port, "/", { "x-forwarded-for": "192.0.2.1" });
    assert.equal((await ask(port, "/", { "x-forwarded-for": "192.0.2.2" })).headers.get("ratelimit"), '"default";r=1;t=3600');
  });

  test(`${framework}_options_choose_key_cost_and_headers`, async (t) => {
    const header = (request, name) => (typeof request.req?.header === "function" ? request.req.header(name) : request.headers[name]);
    const { port } = await started(t, { key: (request) => ["plan", header(request, "x-user")], cost: (request) => Number(header(request, "x-cost") ?? 1), headers: "x-ratelimit", name: "plan" });
    const first = await ask(port, "/", { "x-user": "ada", "x-cost": "2" });
    assert.equal(first.headers.get("x-ratelimit-remaining"), "1");
    assert.equal(first.headers.get("ratelimit"), null);
    assert.equal((await ask(port, "/", { "x-user": "bob" })).headers.get("x-ratelimit-remaining"), "2");
    assert.equal((await ask(port, "/", { "x-user": "ada", "x-cost": "2" })).status, 429);
  });

  test(`${framework}_without_a_decision_answers_503`, async (t) => {
    const unavailable = Limiter.server(`redis://127.0.0.1:${await freePort()}`);
    const { port } = await started(t, {}, unavailable);
    const response = await ask(port);
    assert.deepEqual([response.status, response.headers.get("retry-after")], [503, "1"]);
    assert.match((await response.json()).type, /temporary-reduced-capacity/);
    const failing = Limiter.server(`redis://127.0.0.1:${await freePort()}`, { onError: "fail" });
    assert.equal((await ask((await started(t, {}, failing)).port)).status, 503);
    const allowing = Limiter.server(`redis://127.0.0.1:${await freePort()}`, { onError: "allow" });
    assert.equal((await ask((await started(t, {}, allowing)).port)).status, 200);
  });

  test(`${framework}_key_that_is_too_long_answers_422`, async (t) => {
    const { port } = await started(t, { key: () => "k".repeat(70_000), name: "long" });
    const response = await ask(port);
    assert.equal(response.status, 422);
    assert.match((await response.json()).detail, /expected 1 to 65536 bytes/);
  });

  test(`${framework}_policy_of_a_request_may_be_none`, async (t) => {
    const { port } = await started(t, { policy: () => undefined });
    const response = await ask(port);
    assert.deepEqual([response.status, response.headers.get("ratelimit")], [200, null]);
  });
}

test("express_passes_a_request_once", () => {
  const program = `
    import { Limiter } from "sluicegate";
    import { rateLimit } from "sluicegate/express";
    const response = { statusCode: 200, setHeader: () => undefined, end: () => undefined };
    rateLimit({ limiter: Limiter.inMemory(), policy: "gcra:1/1h" })({ method: "GET", headers: {}, socket: {} }, response, (error) => {
      console.log("passed", error);
      throw new Error("of the next handler");
    });
  `;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", program], { cwd: import.meta.dirname, encoding: "utf8" });
  assert.equal(stdout, "passed undefined\n");
  assert.match(stderr, /of the next handler/);
});

test("express_does_not_change_a_response_that_has_been_sent", async () => {
  const limiter = Limiter.inMemory();
  const middleware = forExpress({ limiter, policy: "gcra:1/1h", name: "sent" });
  const app = createServer((request, response) => {
    const passed = [];
    middleware(request, response, (error) => passed.push(error));
    // Something with a deadline answers before the decision.
    response.end("late");
    setImmediate(() => seen.push(passed));
  });
  const seen = [];
  app.listen(0, "127.0.0.1");
  await once(app, "listening");
  const ask = async () => (await fetch(`http://127.0.0.1:${app.address().port}/`)).text();
  assert.deepEqual([await ask(), await ask()], ["late", "late"]);
  while (seen.length < 2) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(seen, [[undefined], []]);
  app.close();
  app.closeAllConnections();
});

test("key_of_a_request_that_is_no_string_is_named", () => {
  for (const [key, text] of [[5, "5"], [null, "null"], [Promise.resolve("k"), "[object Promise]"], [{}, "[object Object]"], [["a", 5], "5"]]) {
    assert.throws(() => keyOf("all", key), (error) => error instanceof SettingsError && error.message === `invalid key \`${text}\` of a request: expected a string, or a list of them`);
  }
  assert.equal(keyOf("all", ["a", undefined]), "3:all,1:a,-,");
});

test("invalid_options_are_named", () => {
  const limiter = Limiter.inMemory();
  assert.throws(() => forExpress({ limiter, policy: "gcra:1/1s", trustedHops: -1 }), /invalid trustedHops `-1`: expected 0 to 1000/);
  assert.throws(() => forExpress({ limiter, policy: "gcra:1/1s", hops: 1 }), /unknown option `hops`: expected one of limiter/);
  assert.throws(() => forExpress({ policy: "gcra:1/1s" }), /missing limiter/);
  assert.throws(() => forExpress({ limiter, policy: "gcra:1" }), /invalid rate `1`/);
  const named = (options, text) => assert.throws(() => forExpress(options), (error) => error instanceof SettingsError && error.message.includes(text));
  named(undefined, "invalid options `undefined`: expected an object with limiter, policy");
  for (const [name, value, text] of [
    ["key", "ip", 'invalid key `"ip"`: expected a function of the request'],
    ["cost", "2", 'invalid cost `"2"`: expected a whole number'],
    ["headers", true, "invalid headers `true`: expected ietf, x-ratelimit or none"],
    ["headers", "draft-7", 'invalid headers `"draft-7"`: expected ietf, x-ratelimit or none'],
    ["name", 5, "invalid name `5`: expected a string"],
    ["trustedHops", "1", 'invalid trustedHops `"1"`: expected 0 to 1000'],
    ["policy", "concurrency:3/1m", "invalid policy `concurrency:3/1m`: expected one without `concurrency`"],
  ]) {
    named({ limiter, policy: "gcra:1/1s", [name]: value }, text);
  }
});

test("proxies_that_only_the_framework_trusts_are_an_error", async (t) => {
  const limiter = Limiter.inMemory({ clock: new ManualClock() });
  const ask = async (port) => {
    const { status } = await fetch(`http://127.0.0.1:${port}/`, { headers: { connection: "close", "x-forwarded-for": "192.0.2.1" } });
    return status;
  };
  const applications = {
    async express(trusted, options) {
      const errors = [];
      const app = express();
      if (trusted !== undefined) app.set("trust proxy", trusted);
      app.use(forExpress({ limiter, policy: "gcra:99/1s:burst=99", ...options }));
      app.get("/", (_, response) => response.send("home"));
      app.use((error, _request, response, _next) => response.status(500).send(errors.push(error)));
      const server = createServer(app).listen(0, "127.0.0.1");
      await once(server, "listening");
      t.after(() => server.close());
      return [server.address().port, errors];
    },
    async fastify(trusted, options) {
      const errors = [];
      const app = Fastify(trusted === undefined ? {} : { trustProxy: trusted });
      app.setErrorHandler((error, _, reply) => reply.code(500).send(String(errors.push(error))));
      await app.register(forFastify, { limiter, policy: "gcra:99/1s:burst=99", ...options });
      app.get("/", () => "home");
      await app.listen({ port: 0, host: "127.0.0.1" });
      t.after(() => app.close());
      return [app.server.address().port, errors];
    },
  };
  for (const [name, open] of Object.entries(applications)) {
    for (const [trusted, options] of [[undefined, {}], [false, {}], [1, { trustedHops: 1 }], [true, { trustedHops: 0 }], [1, { key: () => "all" }]]) {
      const [port] = await open(trusted, options);
      assert.equal(await ask(port), 200, `${name} ${trusted}`);
    }
    for (const trusted of [1, true, "loopback"]) {
      const [port, errors] = await open(trusted, {});
      assert.equal(await ask(port), 500);
      assert.ok(errors[0] instanceof SettingsError);
      const setting = name === "express" ? `\`trust proxy\` (${JSON.stringify(trusted)})` : "`trustProxy`";
      assert.equal(errors[0].message, `missing trustedHops beside ${setting}, which the limit does not read: expected the number of your proxies, or 0`);
    }
  }
});
