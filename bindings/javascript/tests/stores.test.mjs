// Stores that processes share: through each client, on Redis and Valkey, and on a Sluicegate server.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { createConnection, createServer } from "node:net";
import { after, before, describe, test } from "node:test";

import Valkey from "iovalkey";
import { Cluster, Redis } from "ioredis";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
import {
  CorruptState,
  InvalidKey,
  Limiter,
  ManualClock,
  OperationError,
  Policy,
  PolicyError,
  SettingsError,
  StoreTimeout,
  StoreUnavailable,
} from "sluicegate";
import { histories, replay } from "./histories.mjs";
import { freePort, redisPrograms, startCluster, startRedis, startSentinel, startSluicegate, until } from "./servers.mjs";

const COUNT = process.env.SLUICEGATE_HISTORY_COUNT ?? "1450";
const NO_RETRY = { maxRetriesPerRequest: 0, retryStrategy: () => 20, lazyConnect: true };

/** Clients by name: each connects to a port, and is closed at the end. */
const CLIENTS = {
  async ioredis(port) {
    const client = new Redis({ port, ...NO_RETRY });
    client.on("error", () => undefined);
    return { client, close: () => client.disconnect() };
  },
  async iovalkey(port) {
    const client = new Valkey({ port, ...NO_RETRY });
    client.on("error", () => undefined);
    return { client, close: () => client.disconnect() };
  },
  async "node-redis"(port) {
    const client = createClient({ url: `redis://127.0.0.1:${port}` });
    client.on("error", () => undefined);
    await client.connect();
    return { client, close: () => client.destroy() };
  },
};

/** A connection of the limiter itself. */
CLIENTS.url = async (port) => ({ client: `redis://127.0.0.1:${port}/1`, close: () => undefined });

/** Scripts take times up to 2^51, and windows of calendars from 1970 on; functions know no time zone but UTC. */
function inFunctions(history) {
  return history.every(({ now, policy }) => now > 0 && now < 2 ** 51 && !/tz=(?!UTC)/.test(policy));
}

for (const [engine, program] of Object.entries(redisPrograms())) {
  describe(engine, () => {
    let server;
    before(async () => (server = await startRedis(program)));
    after(() => server.stop());

    for (const [name, open] of Object.entries(CLIENTS)) {
      test(`${name}_decides_as_oracle`, async () => {
        const { client, close } = await open(server.port);
        // One client takes all histories on each engine.
        const count = name === "ioredis" ? COUNT : "60";
        const found = [...histories("traces"), ...histories("7000000", count), ...histories("holds", "8000000", count)].filter(inFunctions);
        // Several at a time, each with a clock of its own.
        let [steps, next] = [0, 0];
        const worker = async () => {
          while (next < found.length) {
            const number = next++;
            const own = new ManualClock();
            const done = await replay(Limiter.redis(client, { clock: own, timeout: 10_000 }), own, `${name}-${number}`, found[number]);
            steps += done;
          }
        };
        await Promise.all(Array.from({ length: 32 }, worker));
        console.log(`figure: ${steps} decisions on ${engine} through ${name}, 0 differ`);
        close();
      });

      test(`${name}_installs_the_functions_and_holds`, async () => {
        const { client, close } = await open(server.port);
        const limiter = Limiter.redis(client, { keyPrefix: `${name}:`, timeout: 5000 });
        const policy = "gcra:2/1h:burst=2";
        assert.deepEqual((await limiter.take("user7", policy)).integers().slice(0, 3), [1, 2, 1]);
        assert.equal((await limiter.takeAll([{ key: "a", policy }, { key: "b", policy: "gcra:1/1h:burst=1" }])).key, 1);
        const bytes = new Uint8Array([0, 255, 13, 10]);
        assert.equal((await limiter.take(bytes, "gcra:1/1h")).allowed, true);
        assert.equal((await limiter.take(bytes, "gcra:1/1h")).allowed, false);
        const hold = await limiter.hold("model", "concurrency:1/30s");
        assert.equal((await limiter.hold("model", "concurrency:1/30s")).allowed, false);
        const waits = limiter.hold("model", "concurrency:1/30s", { timeout: 10_000 });
        await hold.settle();
        assert.equal((await waits).allowed, true);
        assert.equal((await waits).open, true);
        assert.equal(await limiter.reset("model"), true);
        const peeks = await limiter.holdAll([{ key: "{h}1", policy: "fixed-window:9/1h:count=all" }, { key: "{h}2", policy: "gcra:9/1h" }], { ttl: 1000, timeout: 100 });
        assert.equal(peeks.allowed, true);
        assert.equal((await peeks.settle([2, 1])).allowed, true);
        assert.equal((await limiter.peek("{h}1", "fixed-window:9/1h:count=all")).remaining, 7);
        const many = await limiter.takeMany([{ key: "m", policy }, { key: "m", policy, cost: 2 }, { key: "m", policy: "nonsense" }]);
        assert.deepEqual(many.map((it) => it.allowed ?? it.constructor), [true, false, PolicyError]);
        await assert.rejects(limiter.take("zone", "fixed-window:1/day:tz=Europe/Berlin"), (error) => {
          assert.ok(error instanceof PolicyError);
          assert.equal(error.message, "unknown time zone `Europe/Berlin`: functions know only `tz=UTC`; for others, use a Sluicegate server, or load the Sluicegate module into the store");
          return true;
        });
        await assert.rejects(limiter.renew("m", policy, "id"), (error) => error instanceof OperationError && /^missing ttl: expected 1 to 86400000 milliseconds/.test(error.message));
        close();
      });
    }

    test("denial_is_repeated_without_the_store", async () => {
      const { client, close } = await CLIENTS.ioredis(server.port);
      const limiter = Limiter.redis(client, { keyPrefix: "cache:" });
      const policy = "gcra:1/1h";
      await limiter.take("k", policy);
      assert.equal((await limiter.take("k", policy)).source, "store");
      const denied = await limiter.take("k", policy);
      assert.deepEqual([denied.allowed, denied.source], [false, "cache"]);
      assert.equal((await limiter.take("k", policy, 2)).source, "store");
      await limiter.refund("k", policy);
      assert.deepEqual(await limiter.take("k", policy).then((it) => [it.allowed, it.source]), [true, "store"]);
      const off = Limiter.redis(client, { keyPrefix: "cache:", maxDenialCache: 0 });
      await off.take("k", policy);
      assert.equal((await off.take("k", policy)).source, "store");
      close();
    });

    test("key_with_another_value_is_corrupt", async () => {
      const { client, close } = await CLIENTS.ioredis(server.port);
      const limiter = Limiter.redis(client);
      await client.set("other", "something else");
      await client.lpush("list", "x");
      await assert.rejects(limiter.take("other", "gcra:1/1s"), CorruptState);
      await assert.rejects(limiter.take("list", "gcra:1/1s"), CorruptState);
      await assert.rejects(limiter.take("", "gcra:1/1s"), InvalidKey);
      await assert.rejects(limiter.take("k", "concurrency:1/1s"), OperationError);
      assert.equal(await client.get("other"), "something else");
      close();
    });

    test("user_without_permission_to_load_functions_gets_the_command", async () => {
      const own = await startRedis(program);
      const { client, close } = await CLIENTS.ioredis(own.port);
      await client.call("ACL", "SETUSER", "default", "on", "nopass", "~*", "+@all", "-function|load", "-@scripting", "+fcall");
      const limiter = Limiter.redis(client, { onError: "fail" });
      await assert.rejects(limiter.take("k", "gcra:1/1s"), (error) => error instanceof StoreUnavailable && /sluicegate redis install URL/.test(error.message));
      close();
      await own.stop();
    });
  });
}

describe("cluster", () => {
  let nodes;
  before(async () => (nodes = await startCluster()));
  after(async () => {
    for (const node of nodes) await node.stop();
  });

  const open = {
    async ioredis() {
      const client = new Cluster(nodes.map((it) => ({ host: "127.0.0.1", port: it.port })));
      return { client, close: () => client.disconnect() };
    },
    async "node-redis"() {
      const client = createCluster({ rootNodes: nodes.map((it) => ({ url: `redis://127.0.0.1:${it.port}` })) });
      await client.connect();
      return { client, close: () => client.destroy() };
    },
  };
  for (const [name, connect] of Object.entries(open)) {
    test(`${name}_decides_each_key_on_its_node`, async () => {
      const { client, close } = await connect();
      const limiter = Limiter.redis(client, { keyPrefix: `${name}:`, timeout: 10_000 });
      const keys = Array.from({ length: 60 }, (_, index) => `user${index}`);
      for (const allowed of [true, false]) {
        const decisions = await Promise.all(keys.map((key) => limiter.take(key, "gcra:1/1h")));
        assert.deepEqual(decisions.map((it) => it.allowed), keys.map(() => allowed));
      }
      const policy = "gcra:1/1h";
      assert.equal((await limiter.takeAll([{ key: "{acme}:user7", policy }, { key: "{acme}", policy }])).allowed, true);
      assert.equal((await limiter.peek("{acme}", policy)).allowed, false);
      await assert.rejects(limiter.takeAll(keys.slice(10, 14).map((key) => ({ key, policy }))), (error) => error instanceof OperationError && /hash|slot/.test(error.message));
      close();
    });
  }
});

test("clients_of_a_sentinel_and_pools_decide_on_the_primary", async () => {
  const primary = await startRedis();
  const sentinel = await startSentinel(primary);
  const sentinels = [{ host: "127.0.0.1", port: sentinel.port }];
  const clients = [
    await createSentinel({ name: "main", sentinelRootNodes: sentinels }).connect(),
    await createClientPool({ url: `redis://127.0.0.1:${primary.port}` }).connect(),
    new Redis({ name: "main", sentinels }),
  ];
  for (const [index, client] of clients.entries()) {
    const limiter = Limiter.redis(client, { onError: "fail", timeout: 10_000 });
    assert.equal((await limiter.take(`user${index}`, "gcra:2/1h:burst=2")).remaining, 1);
    const decisions = await Promise.all(Array.from({ length: 20 }, () => limiter.take("shared", "fixed-window:30/1h")));
    assert.equal(decisions.filter((it) => it.allowed).length, [20, 10, 0][index]);
  }
  for (const client of clients) await (client.destroy ?? client.disconnect).call(client);
  for (const server of [sentinel, primary]) await server.stop();
});

describe("server", () => {
  let server;
  before(async () => (server = await startSluicegate()));
  after(() => server.stop());
  const url = () => `redis://127.0.0.1:${server.port}`;

  /** The decision without the times that pass between two processes. */
  const timeless = (decision) => decision.integers().filter((_, index) => index !== 3 && index !== 4 && index !== 5);

  test("random_decisions_are_those_of_memory", async () => {
    const limiter = Limiter.server(url(), { timeout: 10_000, maxDenialCache: 0 });
    const clock = new ManualClock();
    const local = Limiter.inMemory({ clock });
    // Nothing recovers during the test.
    const policies = ["fixed-window:50/30d", "sliding-log:40/30d", "sliding-counter:60/366d", "token-bucket:30/366d", "gcra:20/366d:burst=20", "concurrency:8/24h", "fixed-window:50/30d:count=all,gcra:30/366d"];
    let seed = 7;
    const random = (below) => ((seed = (seed * 48_271) % 2_147_483_647), seed % below);
    const turns = Number(COUNT) >= 1450 ? 100_000 : 5000;
    const pending = [];
    for (let turn = 0; turn < turns; turn += 1) {
      const key = `k${random(500)}`;
      const policy = policies[random(policies.length)];
      const cost = random(4);
      const id = `id${random(3)}`;
      const kind = ["take", "take", "take", "peek", "charge", "refund", "hold", "settle", "renew"][random(9)];
      const ask = (it) =>
        kind === "hold"
          ? it.hold(key, policy, { cost, id, ttl: 86_400_000 }).then((hold) => hold.decision)
          : kind === "settle"
            ? it.settle(key, policy, id, cost)
            : kind === "renew"
              ? it.renew(key, policy, id, 86_400_000)
              : it[kind](key, policy, cost);
      const answer = (it) => ask(it).then(timeless, (error) => error.constructor.name);
      pending.push(Promise.all([answer(limiter), answer(local)]).then(([there, here]) => assert.deepEqual(there, here, `${kind} ${key} ${policy} ${cost}`)));
      if (pending.length === 200) await Promise.all(pending.splice(0));
    }
    await Promise.all(pending);
    console.log(`figure: ${turns} decisions on a server, 0 differ`);
  });

  test("clients_of_redis_speak_its_commands", async () => {
    for (const [name, open] of Object.entries(CLIENTS)) {
      if (name === "url") continue;
      const { client, close } = await open(server.port);
      const limiter = Limiter.redis(client, { keyPrefix: `${name}:`, timeout: 5000 });
      // Functions have no time zone but UTC.
      assert.equal((await limiter.take("zone", "fixed-window:1/day:tz=Europe/Berlin")).allowed, true);
      assert.equal((await limiter.takeAll([{ key: "a", policy: "gcra:1/1h" }, { key: "b", policy: "gcra:2/1h" }])).key, 0);
      assert.equal(await limiter.reset("zone"), true);
      close();
    }
  });

  test("errors_of_a_server_speak_of_milliseconds", async () => {
    const limiter = Limiter.server(url(), { timeout: 5000 });
    await assert.rejects(limiter.renew("k", "gcra:1/1h", "id"), (error) => error instanceof OperationError && /^missing ttl: expected 1 to 86400000 milliseconds/.test(error.message));
    await assert.rejects(limiter.renew("k", "concurrency:1/30s", "id", 60_000), /^OperationError: invalid ttl `60000`: expected 1 to 30000 milliseconds$/);
  });

  test("named_policies_of_its_rules_are_known", async () => {
    const limiter = Limiter.server(url());
    await assert.rejects(limiter.take("k", "@gold"), PolicyError);
    await assert.rejects(limiter.take("k", new Policy("@gold", { onError: "local" })), OperationError);
  });

  test("time_zones_waits_and_several_keys_work", async () => {
    const limiter = Limiter.server(url());
    assert.equal((await limiter.take("zone", "fixed-window:1/day:tz=Europe/Berlin")).allowed, true);
    await limiter.take("w", "gcra:20/1s:burst=1");
    assert.equal((await limiter.wait("w", "gcra:20/1s:burst=1", { timeout: 5000 })).allowed, true);
    const all = await limiter.takeAll([{ key: "x", policy: "gcra:1/1h" }, { key: "y", policy: "gcra:2/1h" }, { key: "x", policy: "gcra:9/1h" }]);
    assert.deepEqual([all.allowed, all.key, all.each.length], [true, 0, 3]);
  });

  test("unix_socket_and_password_are_parts_of_the_url", async () => {
    const path = `/tmp/sluicegate-${process.pid}.sock`;
    const own = await startSluicegate(["--unix", path]);
    const limiter = Limiter.server(`unix://${path}`);
    assert.equal((await limiter.take("k", "gcra:1/1h")).allowed, true);
    await own.stop();
  });

  test("connection_is_opened_again_after_a_restart", async () => {
    const port = await freePort();
    const limiter = Limiter.server(`redis://127.0.0.1:${port}`, { onError: "fail", timeout: 5000 });
    await assert.rejects(limiter.take("k", "gcra:1/1h"), StoreUnavailable);
    for (let turn = 0; turn < 2; turn += 1) {
      const own = await startSluicegate([], port);
      assert.equal((await limiter.take("k", "gcra:1/1h")).allowed, true);
      await own.stop();
      await assert.rejects(limiter.take("k", "gcra:2/1h"), StoreUnavailable);
    }
  });

  test("invalid_settings_are_named", () => {
    assert.throws(() => Limiter.server("http://127.0.0.1"), SettingsError);
    assert.throws(() => Limiter.server("nonsense"), /invalid URL `nonsense`: expected redis:/);
    assert.throws(() => Limiter.redis("redis://127.0.0.1/x"), /invalid database `\/x`: expected a number/);
    assert.throws(() => Limiter.redis({}), /invalid client of type `object`: expected one of ioredis/);
    assert.throws(() => Limiter.redis({ call() {} }, { deadline: 5 }), /unknown setting `deadline`: expected one of timeout/);
  });
});

describe("clients that fail", () => {
  test("client_that_throws_is_unavailable", async () => {
    const error = new Error("Connection is closed.");
    const throwing = () => {
      throw error;
    };
    const pipelines = { call: throwing, exec: async () => null };
    for (const client of [{ call: throwing }, { call: throwing, pipeline: throwing }, { call: throwing, pipeline: () => pipelines }, { call: () => undefined, pipeline: () => ({ call: () => undefined, exec: async () => null }) }]) {
      const limiter = Limiter.redis(client, { onError: "fail", timeout: 5000 });
      for (const count of [1, 3, 17]) {
        const calls = Array.from({ length: count }, () => limiter.take("k", "gcra:1/1h"));
        for (const call of calls) await assert.rejects(call, StoreUnavailable);
      }
    }
  });

  test("connection_whose_greeting_fails_is_followed_by_one", async () => {
    const server = await startRedis();
    const sockets = [];
    const proxy = createServer((socket) => {
      sockets.push(socket.on("error", () => undefined));
      // The first of two commands fails; the second gets no reply.
      if (sockets.length === 1) socket.once("data", () => socket.write("-WRONGPASS invalid password\r\n"));
      else socket.pipe(createConnection(server.port, "127.0.0.1")).pipe(socket);
    }).listen(0, "127.0.0.1");
    await once(proxy, "listening");
    const { client, close } = await CLIENTS.ioredis(server.port);
    await client.config("SET", "requirepass", "secret");
    const limiter = Limiter.redis(`redis://:secret@127.0.0.1:${proxy.address().port}/1`, { onError: "fail", timeout: 5000 });
    const take = () => limiter.take("k", "gcra:9/1h:burst=9").then((it) => it.remaining, (error) => error.message);
    assert.match(await take(), /WRONGPASS/);
    const second = take();
    // The socket of the first closes before the next attempt connects.
    await until(() => sockets[0].closed);
    assert.deepEqual(await Promise.all([second, take()]), [8, 7]);
    assert.equal(sockets.length, 2);
    close();
    await limiter.close();
    proxy.close();
    sockets.forEach((it) => it.destroy());
    await server.stop();
  });

  test("connection_without_replies_is_closed", async () => {
    const server = await startRedis();
    // A proxy in front of the server, whose first connection forwards nothing, as that to a host that is gone.
    const sockets = [];
    let isSilent = true;
    const proxy = createServer((socket) => {
      sockets.push(socket.on("error", () => undefined));
      if (!isSilent) socket.pipe(createConnection(server.port, "127.0.0.1")).pipe(socket);
    }).listen(0, "127.0.0.1");
    await once(proxy, "listening");
    const real = performance.now;
    for (const database of ["", "/1"]) {
      isSilent = true;
      const limiter = Limiter.redis(`redis://127.0.0.1:${proxy.address().port}${database}`, { onError: "fail", timeout: 200 });
      await assert.rejects(limiter.take("k", "gcra:1/1h"), StoreTimeout);
      isSilent = false;
      await assert.rejects(limiter.take("k", "gcra:1/1h"), StoreTimeout);
      const [start, connections] = [real.call(performance), sockets.length];
      performance.now = () => real.call(performance) + 20_000;
      try {
        while (!(await limiter.take("k", "gcra:1/1h").then((it) => it.allowed, () => false))) assert.ok(real.call(performance) - start < 10_000);
      } finally {
        performance.now = real;
      }
      assert.equal(sockets.length, connections + 1);
      await limiter.close();
    }
    proxy.close();
    sockets.forEach((it) => it.destroy());
    await server.stop();
  });

  test("library_that_is_missing_is_loaded_once", async () => {
    const server = await startRedis();
    const { client, close } = await CLIENTS.ioredis(server.port);
    const limiter = Limiter.redis(client, { timeout: 20_000 });
    for (let turn = 0; turn < 2; turn += 1) {
      await Promise.all(Array.from({ length: 100 }, (_, user) => limiter.take(`user${user}`, "gcra:9/1h")));
      await client.call("FUNCTION", "FLUSH");
    }
    const stats = await client.info("commandstats");
    assert.match(stats, /cmdstat_function\|load:calls=2,/);
    close();
    await server.stop();
  });

  test("timeout_may_be_longer_than_a_timer", async () => {
    const warnings = [];
    const collect = (warning) => warnings.push(warning.name);
    process.on("warning", collect);
    for (const timeout of [2 ** 40, Infinity]) {
      const limiter = Limiter.redis({ call: () => new Promise((resolve) => setTimeout(resolve, 20, [1, 1, 0, 0, 0, 0, 0])) }, { timeout });
      assert.equal((await limiter.take("k", "gcra:1/1h")).allowed, true);
    }
    await new Promise((resolve) => setImmediate(resolve));
    process.off("warning", collect);
    assert.deepEqual(warnings, []);
  });
});

describe("store that is unavailable", () => {
  let server;
  before(async () => (server = await startSluicegate()));
  after(() => server.stop());

  test("on_error_decides", async () => {
    const limiter = Limiter.server(`redis://127.0.0.1:${server.port}`, { timeout: 100 });
    const policy = (onError) => new Policy("fixed-window:4/1h", { onError });
    assert.equal((await limiter.take("used", policy("local"), 3)).remaining, 1);
    const hold = await limiter.hold("held", "fixed-window:4/1h", { ttl: 60_000 });
    await server.pause();
    const denied = await limiter.take("k", "fixed-window:4/1h");
    assert.deepEqual([denied.allowed, denied.source, denied.retryAfterMs], [false, "fallback", 100]);
    assert.deepEqual(await limiter.take("k", policy("allow")).then((it) => [it.allowed, it.source]), [true, "fallback"]);
    await assert.rejects(limiter.take("k", policy("fail")), StoreTimeout);
    await assert.rejects(limiter.charge("k", policy("allow")), StoreTimeout);
    // It starts from the usage that the store has reported.
    assert.deepEqual(await limiter.take("used", policy("local")).then((it) => [it.allowed, it.remaining, it.source]), [true, 0, "fallback"]);
    assert.equal((await limiter.take("used", policy("local"))).allowed, false);
    assert.equal((await limiter.take("share", policy("local=1/4"))).limit, 1);
    const all = await limiter.takeAll([{ key: "a", policy: policy("allow") }, { key: "b", policy: policy("deny") }]);
    assert.deepEqual([all.allowed, all.key, all.source], [false, 1, "fallback"]);
    // Ten failures open the circuit breaker: then nothing waits.
    for (let turn = 0; turn < 10; turn += 1) await limiter.take("k", policy("allow"));
    const start = performance.now();
    for (let turn = 0; turn < 20; turn += 1) await limiter.take("k", policy("allow"));
    assert.ok(performance.now() - start < 1000, "the breaker is open");
    // A settle at the end of a block fails silently, and is repeated.
    await hold[Symbol.asyncDispose]();
    server.resume();
    const end = performance.now() + 20_000;
    for (;;) {
      const { source, allowed } = await limiter.take("again", policy("deny"), 0);
      if (source === "store" && allowed) break;
      assert.ok(performance.now() < end);
    }
    for (;;) {
      const { integers } = await limiter.settle("held", "fixed-window:4/1h", hold.id).then((it) => ({ integers: it.integers() }), () => ({ integers: [1] }));
      if (integers[0] === 0 && integers[3] === -1) break;
      assert.ok(performance.now() < end);
    }
    assert.equal((await limiter.peek("held", "fixed-window:4/1h")).remaining, 3);
  });

  test("outage_is_told_once_when_it_begins_and_ends", async () => {
    const port = await freePort();
    const told = [];
    const limiter = Limiter.server(`redis://127.0.0.1:${port}`, { timeout: 5000, onUnavailable: (error) => told.push(error), onAvailable: () => told.push("again") });
    for (let outage = 1; outage <= 2; outage += 1) {
      for (let turn = 0; turn < 3; turn += 1) assert.equal((await limiter.take("k", "gcra:9/1h")).source, "fallback");
      assert.equal(told.length, outage * 2 - 1);
      assert.ok(told.at(-1) instanceof StoreUnavailable);
      assert.match(told.at(-1).message, /^the store is unavailable: /);
      assert.equal(limiter.unavailable, told.at(-1).message);
      const own = await startSluicegate([], port);
      const sources = new Set();
      await until(async () => {
        sources.add((await limiter.take("k", "gcra:9/1h", 0)).source);
        return limiter.unavailable === undefined;
      });
      assert.ok(sources.has("store"));
      assert.equal(told.length, outage * 2);
      assert.deepEqual([told.at(-1), limiter.unavailable], ["again", undefined]);
      await own.stop();
    }
    await limiter.close();
  });

  test("outage_in_which_some_requests_have_replies_is_one", async () => {
    const told = [];
    let turn = 0;
    const call = async () => {
      if ((turn += 1) % 2 === 0) throw new Error("Connection is closed.");
      return [1, 1, 0, 0, 0, 0, 0];
    };
    const limiter = Limiter.redis({ call }, { onUnavailable: () => told.push("begins"), onAvailable: () => told.push("ends") });
    const sources = [];
    for (let request = 0; request < 20; request += 1) sources.push((await limiter.take("k", "gcra:9/1h")).source);
    assert.deepEqual([...new Set(sources)], ["store", "fallback"]);
    assert.deepEqual(told, ["begins"]);
  });

  test("outage_is_a_warning_without_a_callback", async () => {
    const program = `
      import { Limiter } from "sluicegate";
      const limiter = Limiter.server("redis://127.0.0.1:${await freePort()}", { onError: "allow" });
      for (let turn = 0; turn < 3; turn += 1) await limiter.take("k", "gcra:1/1h");
    `;
    const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", program], { cwd: import.meta.dirname, encoding: "utf8" });
    assert.equal(stdout, "");
    assert.match(stderr, /^sluicegate: the store is unavailable: .*ECONNREFUSED.*; until it answers, onError decides \(`allow` for policies without their own\)\n$/);
  });

  test("limiter_that_is_closed_makes_no_decision", async () => {
    const client = new Redis({ port: server.port });
    const told = [];
    for (const store of [`redis://127.0.0.1:${server.port}`, client]) {
      const limiter = Limiter.redis(store, { onError: "allow", timeout: 20_000, onUnavailable: (error) => told.push(error) });
      const hold = await limiter.hold("closed", "token-bucket:9/1h", { ttl: 60_000 });
      assert.equal(hold.allowed, true);
      await server.pause();
      const inFlight = limiter.take("k", "gcra:1/1h");
      // The command is sent in this turn.
      await new Promise((resolve) => setTimeout(resolve));
      await limiter.close();
      if (store === client) server.resume();
      else await assert.rejects(inFlight, (error) => error instanceof OperationError && error.message === "the limiter is closed");
      server.resume();
      await inFlight.catch(() => undefined);
      await assert.rejects(limiter.take("k", "gcra:1/1h"), (error) => error instanceof OperationError && error.message === "the limiter is closed");
      await assert.rejects(hold.settle(), (error) => error instanceof OperationError && error.message === "the limiter is closed");
    }
    assert.deepEqual(told, []);
    assert.equal(await client.ping(), "PONG");
    client.disconnect();
  });

  test("hold_that_is_aborted_in_flight_is_cancelled", async () => {
    const limiter = Limiter.server(`redis://127.0.0.1:${server.port}`, { timeout: 20_000 });
    assert.equal((await limiter.peek("aborted", "concurrency:1/1h")).allowed, true);
    await server.pause();
    const abort = new AbortController();
    const holds = limiter.hold("aborted", "concurrency:1/1h", { signal: abort.signal });
    // The command is sent in this turn.
    await new Promise((resolve) => setTimeout(resolve));
    abort.abort(new Error("enough"));
    server.resume();
    await assert.rejects(holds, /enough/);
    assert.equal((await limiter.peek("aborted", "concurrency:1/1h")).allowed, true);
  });

  test("wait_that_is_aborted_in_flight_gives_back_what_it_reserves_and_no_units_of_others", async () => {
    const limiter = Limiter.server(`redis://127.0.0.1:${server.port}`, { timeout: 20_000 });
    // Of the first, one unit passes at once, and the second one is reserved.
    for (const [policy, used] of [["gcra:1/1h:burst=1", 1], ["fixed-window:5/1h", 0], ["gcra:5/1h:burst=5", 0]]) {
      const key = `aborted-${policy}`;
      if (used > 0) await limiter.take(key, policy);
      const before = await limiter.peek(key, policy, 0);
      await server.pause();
      const abort = new AbortController();
      const waits = limiter.wait(key, policy, { timeout: 36_000_000, signal: abort.signal });
      await new Promise((resolve) => setTimeout(resolve));
      abort.abort(new Error("enough"));
      server.resume();
      if (used > 0) {
        await assert.rejects(waits, /enough/);
        assert.ok((await limiter.peek(key, policy, 0)).resetAfterMs <= before.resetAfterMs, policy);
      } else {
        assert.equal((await waits).allowed, true, policy);
        assert.equal((await limiter.peek(key, policy, 0)).remaining, 4, policy);
      }
    }
  });

  test("limiter_that_is_closed_ends_waits_and_leaves_nothing_behind", async () => {
    const looks = Limiter.server(`redis://127.0.0.1:${server.port}`, { timeout: 20_000 });
    for (const aborts of [false, true]) {
      const limiter = Limiter.server(`redis://127.0.0.1:${server.port}`, { timeout: 20_000 });
      const key = `closed-${aborts}`;
      await limiter.take(key, "gcra:1/1h:burst=1");
      const before = (await looks.peek(key, "gcra:1/1h:burst=1", 0)).resetAfterMs;
      const hold = await looks.hold(`${key}-held`, "concurrency:1/1h");
      const abort = new AbortController();
      const waits = limiter.wait(key, "gcra:1/1h:burst=1", { timeout: 36_000_000, signal: abort.signal });
      const holds = limiter.hold(`${key}-held`, "concurrency:1/1h", { timeout: 36_000_000, signal: abort.signal });
      while ((await looks.peek(key, "gcra:1/1h:burst=1", 0)).resetAfterMs <= 3_600_000);
      if (aborts) abort.abort(new Error("enough"));
      const closes = limiter.close();
      const expected = aborts ? /enough/ : OperationError;
      await Promise.all([assert.rejects(waits, expected), assert.rejects(holds, expected), closes]);
      assert.ok((await looks.peek(key, "gcra:1/1h:burst=1", 0)).resetAfterMs <= before, key);
      await hold.settle();
      assert.equal((await looks.hold(`${key}-held`, "concurrency:1/1h")).allowed, true);
    }
  });

  test("limiter_default_applies_to_policies_that_do_not_say", async () => {
    const port = await freePort();
    const limiter = Limiter.server(`redis://127.0.0.1:${port}`, { onError: "allow" });
    assert.deepEqual(await limiter.take("k", "gcra:1/1h").then((it) => [it.allowed, it.source]), [true, "fallback"]);
    assert.equal((await limiter.take("k", new Policy("gcra:1/1h", { onError: "deny" }))).allowed, false);
    assert.equal((await limiter.hold("k", "concurrency:1/30s")).allowed, true);
    await assert.rejects(limiter.reset("k"), StoreUnavailable);
  });
});
