// `cargo xtask bench javascript`: this package beside other limiters of npm.
//
// The rounds of all candidates are interleaved, and each figure is the median of its rounds. A ratio is how many times less time or
// memory ours takes, or how many times more it decides. `--quick` runs one small round of each, without figures to rely on.

import { spawnSync } from "node:child_process";

import { MemoryStore } from "express-rate-limit";
import { Redis } from "ioredis";
import { RateLimiterMemory, RateLimiterRedis } from "rate-limiter-flexible";
import { RedisStore } from "rate-limit-redis";
import { Limiter } from "sluicegate";
import { startRedis } from "../tests/servers.mjs";

const QUICK = process.argv.includes("--quick");
const ROUNDS = QUICK ? 1 : 9;
const CALLS = QUICK ? 1000 : 200_000;
const REDIS_CALLS = QUICK ? 640 : 12_800;
const KEYS = Array.from({ length: 100_000 }, (_, index) => `user${index}`);
/** Every candidate admits this many per minute: more than a round takes. */
const POINTS = 1_000_000_000;
const AT_ONCE = 64;

const median = (numbers) => numbers.toSorted((one, other) => one - other)[Math.floor(numbers.length / 2)];

/** Median nanoseconds of a call of each candidate, whose rounds take turns. */
async function interleaved(candidates, calls) {
  const times = Object.fromEntries(Object.keys(candidates).map((name) => [name, []]));
  for (let round = 0; round <= ROUNDS; round += 1) {
    for (const [name, run] of Object.entries(candidates)) {
      const start = performance.now();
      await run(calls);
      // The first round compiles.
      if (round > 0 || QUICK) times[name].push(((performance.now() - start) * 1e6) / calls);
    }
  }
  return Object.fromEntries(Object.entries(times).map(([name, all]) => [name, median(all)]));
}

function row(work, ours, against, theirs, bar, unit = "ns") {
  const ratio = theirs / ours;
  const [left, right] = [ours, theirs].map((it) => `${it < 10 ? it.toFixed(1) : Math.round(it)} ${unit}`);
  console.log(`${work.padEnd(40)} ${against.padEnd(34)} ${ratio.toFixed(2).padStart(6)} x ${bar.toFixed(2).padStart(6)} x  ${(ratio >= bar ? "holds" : "MISSED").padEnd(6)}  ${left}, ${right}`);
}

function compared(work, medians, bars) {
  for (const [ours, against, bar] of bars) row(`${work}, ${ours}`, medians[ours], against, medians[against], bar);
}

async function memory() {
  const limiter = Limiter.inMemory();
  const store = new MemoryStore();
  store.init({ windowMs: 60_000 });
  const flexible = new RateLimiterMemory({ points: POINTS, duration: 60 });
  const policy = "gcra:100000000/1m";
  for (const [work, key] of [
    ["one hot key", () => "user7"],
    ["100 000 keys", (index) => KEYS[index % KEYS.length]],
  ]) {
    const medians = await interleaved(
      {
        takeSync: (calls) => {
          for (let index = 0; index < calls; index += 1) limiter.takeSync(key(index), policy);
        },
        take: async (calls) => {
          for (let index = 0; index < calls; index += 1) await limiter.take(key(index), policy);
        },
        "express-rate-limit": async (calls) => {
          for (let index = 0; index < calls; index += 1) await store.increment(key(index));
        },
        "rate-limiter-flexible": async (calls) => {
          for (let index = 0; index < calls; index += 1) await flexible.consume(key(index));
        },
      },
      CALLS,
    );
    compared(work, medians, [
      ["takeSync", "express-rate-limit", 1],
      ["takeSync", "rate-limiter-flexible", 2],
      ["take", "express-rate-limit", 1],
      ["take", "rate-limiter-flexible", 2],
    ]);
  }
  store.shutdown();
}

/** Bytes of a key: each candidate in a process of its own, whose garbage is collected before and after. */
function bytes() {
  const measure = (setup, call) => {
    const program = `import { Limiter } from "sluicegate"; import { MemoryStore } from "express-rate-limit"; import { RateLimiterMemory } from "rate-limiter-flexible";
      const used = () => { gc(); const { heapUsed, external, arrayBuffers } = process.memoryUsage(); return heapUsed + external; };
      ${setup}
      for (let index = 0; index < 1000; index += 1) await (${call})("warm" + index);
      const before = used();
      for (let index = 0; index < 100000; index += 1) await (${call})("user" + index);
      console.log((used() - before) / 100000); process.exit(0);`;
    const { stdout, stderr, status } = spawnSync(process.execPath, ["--expose-gc", "--input-type=module", "-e", program], { encoding: "utf8" });
    if (status !== 0) throw new Error(stderr);
    return Number(stdout);
  };
  const ours = measure(`const limiter = Limiter.inMemory();`, `(key) => limiter.take(key, "gcra:1000/1h")`);
  const express = measure(`const store = new MemoryStore(); store.init({ windowMs: 3600000 });`, `(key) => store.increment(key)`);
  const flexible = measure(`const flexible = new RateLimiterMemory({ points: 1000, duration: 3600 });`, `(key) => flexible.consume(key)`);
  row("bytes of a key", ours, "express-rate-limit", express, 2, "B");
  row("bytes of a key", ours, "rate-limiter-flexible", flexible, 2, "B");
}

/** Nanoseconds of a decision with 64 at once. */
const atOnce = (call) => async (calls) => {
  let next = 0;
  const worker = async () => {
    while (next < calls) await call(KEYS[next++ % 1000]);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
};

/** On Redis by functions, or by the module. */
async function redis(module) {
  const server = await startRedis("redis-server", module === undefined ? [] : ["--loadmodule", module]);
  const work = module === undefined ? "functions, 64 at once" : "module, 64 at once";
  const client = new Redis({ port: server.port });
  const limiter = Limiter.redis(client, { timeout: 5000 });
  const store = new RedisStore({ sendCommand: (command, ...words) => client.call(command, ...words) });
  await store.init({ windowMs: 60_000 });
  const flexible = new RateLimiterRedis({ storeClient: client, points: POINTS, duration: 60 });
  const own = Limiter.redis(`redis://127.0.0.1:${server.port}`, { timeout: 5000 });
  for (const it of [limiter, own]) {
    const decisions = await Promise.all(KEYS.slice(0, AT_ONCE).map((key) => it.take(key, "gcra:100000000/1m")));
    if (!decisions.every(({ allowed, source }) => allowed && source === "store")) throw new Error("the store has not decided");
  }
  const medians = await interleaved(
    {
      "by ioredis": atOnce((key) => limiter.take(key, "gcra:100000000/1m")),
      "by its connection": atOnce((key) => own.take(key, "gcra:100000000/1m")),
      "rate-limiter-flexible": atOnce((key) => flexible.consume(key)),
      "rate-limit-redis": atOnce((key) => store.increment(key)),
    },
    REDIS_CALLS,
  );
  compared(work, medians, [
    ["by ioredis", "rate-limiter-flexible", 1.5],
    ["by ioredis", "rate-limit-redis", 1.5],
    ["by its connection", "rate-limiter-flexible", 1.5],
    ["by its connection", "rate-limit-redis", 1.5],
  ]);
  if (module === undefined) await deniedKey(limiter, client);
  client.disconnect();
  await server.stop();
}

async function deniedKey(limiter, client) {
  const one = new RateLimiterRedis({ storeClient: client, points: 1, duration: 3600, keyPrefix: "one" });
  await one.consume("k").catch(() => undefined);
  const denied = await interleaved(
    {
      take: atOnce(() => limiter.take("denied", "gcra:1/1h")),
      "rate-limiter-flexible": atOnce(() => one.consume("k").catch(() => undefined)),
    },
    REDIS_CALLS,
  );
  compared("Redis, a denied key", denied, [["take", "rate-limiter-flexible", 1.5]]);
}

console.log(`Node ${process.version}, ${ROUNDS} rounds${QUICK ? ", quick: no figures to rely on" : ""}`);
await memory();
bytes();
await redis();
// `cargo xtask bench javascript` builds it.
if (process.env.SLUICEGATE_MODULE) await redis(process.env.SLUICEGATE_MODULE);
process.exit(0);
