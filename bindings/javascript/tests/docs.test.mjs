// The programs of the documents: those in JavaScript run, and those in TypeScript compile.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { Policy } from "sluicegate";
import { freePort, ROOT, startRedis, startSluicegate } from "./servers.mjs";

const PACKAGE = fileURLToPath(new URL("../", import.meta.url));
// Below the package, so that imports find what it and its tests have.
const FOLDER = `${PACKAGE}dist/documents`;
const PAGES = { page: `${ROOT}docs/javascript.md`, readme: `${PACKAGE}README.md` };

const programs = (language) =>
  Object.entries(PAGES).flatMap(([name, path]) =>
    [...readFileSync(path, "utf8").matchAll(new RegExp(`\`\`\`${language}\\n([^]*?)\`\`\``, "g"))].map(([, text], index) => [`${name}_${index}`, text]),
  );

let servers;
before(async () => {
  mkdirSync(FOLDER, { recursive: true });
  servers = [await startRedis(), await startSluicegate()];
});
after(async () => {
  rmSync(FOLDER, { recursive: true });
  for (const server of servers) await server.stop();
});

for (const [name, text] of programs("js")) {
  test(`program_${name}_runs`, () => {
    const [redis, sluicegate] = servers;
    const file = `${FOLDER}/${name}.mjs`;
    writeFileSync(file, `${text.replaceAll("127.0.0.1:6379", `127.0.0.1:${redis.port}`).replaceAll("127.0.0.1:6380", `127.0.0.1:${sluicegate.port}`)}\nprocess.exit(0);\n`);
    const { status, stderr, stdout } = spawnSync(process.execPath, [file], { encoding: "utf8", timeout: 60_000 });
    assert.equal(status, 0, stderr);
    // What a comment after a call says is what it prints.
    const shown = [...text.matchAll(/^console\.log\(.*\); \/\/ (.*)$/gm)].map(([, comment]) => comment);
    for (const line of shown) assert.ok(stdout.split("\n").includes(line), `${line} is not in ${stdout}`);
  });
}

test("program_with_ioredis_starts_while_redis_is_down", async () => {
  const [, text] = programs("js").find(([, it]) => it.includes('from "ioredis"'));
  const file = `${FOLDER}/down.mjs`;
  writeFileSync(file, `${text.replaceAll("127.0.0.1:6379", `127.0.0.1:${await freePort()}`)}\nconsole.log((await limiter.take("user7", "gcra:30/1m")).source);\nprocess.exit(0);\n`);
  const { status, stderr, stdout } = spawnSync(process.execPath, [file], { encoding: "utf8", timeout: 60_000 });
  assert.equal(status, 0, stderr);
  assert.match(stdout, /\nfallback\n$/);
  assert.match(stderr, /^sluicegate: the store is unavailable: [^\n]*\n$/);
});

test("programs_in_typescript_compile", () => {
  const files = programs("ts").map(([name, text]) => {
    const file = `${FOLDER}/${name}.ts`;
    writeFileSync(file, text);
    return file;
  });
  assert.ok(files.length >= 2);
  const options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2023,esnext.disposable,dom", "--types", "node", "--module", "nodenext", "--experimentalDecorators", "--emitDecoratorMetadata"];
  const { status, stdout } = spawnSync(process.execPath, [`${PACKAGE}node_modules/typescript/bin/tsc`, ...options, "--ignoreConfig", ...files], { encoding: "utf8", cwd: PACKAGE });
  assert.equal(status, 0, stdout);
});

test("types_need_those_of_node_or_of_browsers", () => {
  const file = `${FOLDER}/alone.ts`;
  writeFileSync(file, 'import { Limiter, type Hold } from "sluicegate";\nexport const hold: Promise<Hold> = Limiter.inMemory().hold("k", "concurrency:1/30s");\n');
  for (const [lib, types] of [["es2022", "node"], ["es2022,dom", ""]]) {
    const options = ["--noEmit", "--strict", "--target", "es2022", "--lib", lib, "--types", types, "--module", "nodenext"];
    const { status, stdout } = spawnSync(process.execPath, [`${PACKAGE}node_modules/typescript/bin/tsc`, ...options, "--ignoreConfig", file], { encoding: "utf8", cwd: PACKAGE });
    assert.equal(status, 0, stdout);
  }
});

test("types_fit_the_frameworks_and_their_packages", () => {
  const file = `${FOLDER}/types.ts`;
  writeFileSync(
    file,
    `import express from "express";
import { rateLimit as expressRateLimit } from "express-rate-limit";
import Fastify from "fastify";
import fastifyRateLimit from "@fastify/rate-limit";
import { ThrottlerModule } from "@nestjs/throttler";
import { Hono } from "hono";
import { Redis } from "ioredis";
import { Redis as Valkey } from "iovalkey";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
import { Limiter, type Decision } from "sluicegate";
import { rateLimit } from "sluicegate/express";
import { SluicegateStore } from "sluicegate/express-rate-limit";
import * as fastify from "sluicegate/fastify";
import { storeOf } from "sluicegate/fastify-rate-limit";
import * as hono from "sluicegate/hono";
import { SluicegateStorage } from "sluicegate/nestjs-throttler";

for (const client of [new Redis(), new Valkey(), createClient(), createClientPool(), createCluster({ rootNodes: [] }), createSentinel({ name: "main", sentinelRootNodes: [] })]) Limiter.redis(client);
const limiter = Limiter.inMemory();
const decision: Decision = limiter.takeSync("k", { algorithm: "gcra", limit: 1, per: "1s" });
const retry: number | undefined = decision.retryAfterMs;
express().use(rateLimit({ limiter, policy: "gcra:1/1s", key: (request) => request.headers["x-user"]?.toString() }));
express().use(expressRateLimit({ store: new SluicegateStore({ limiter }) }));
const app = Fastify();
app.register(fastify.rateLimit, { limiter, policy: "gcra:1/1s" });
app.get("/", { onRequest: fastify.limit({ limiter, policy: "gcra:1/1s" }) }, () => String(retry));
app.register(fastifyRateLimit, { store: storeOf(limiter) });
new Hono().use(hono.rateLimit({ limiter, policy: "gcra:1/1s" })).get("/", hono.rateLimit({ limiter, policy: "gcra:1/1s" }), (context) => context.text("home"));
ThrottlerModule.forRoot({ throttlers: [], storage: new SluicegateStorage(limiter) });
// @ts-expect-error: an algorithm that does not exist
limiter.takeSync("k", { algorithm: "gcar", limit: 1, per: "1s" });
limiter.takeSync("k", { algorithm: "gcra", limit: 1, perMs: 1000 });
// @ts-expect-error: a period without a unit
limiter.takeSync("k", { algorithm: "gcra", limit: 1, per: 60 });
// @ts-expect-error: no period
limiter.takeSync("k", { algorithm: "gcra", limit: 1 });
// @ts-expect-error: only a limiter in memory decides at once
Limiter.server("redis://127.0.0.1").takeSync("k", "gcra:1/1s");
`,
  );
  const options = ["--noEmit", "--strict", "--skipLibCheck", "--esModuleInterop", "--target", "es2022", "--lib", "es2023,esnext.disposable,dom", "--types", "node", "--module", "nodenext"];
  const { status, stdout } = spawnSync(process.execPath, [`${PACKAGE}node_modules/typescript/bin/tsc`, ...options, "--ignoreConfig", file], { encoding: "utf8", cwd: PACKAGE });
  assert.equal(status, 0, stdout);
});

test("policies_of_the_page_are_valid", () => {
  const policies = new Set([...readFileSync(PAGES.page, "utf8").matchAll(/["`]([a-z-]+:\d+\/[^"`]+)["`]/g)].map(([, text]) => text));
  assert.ok(policies.size >= 6);
  for (const text of policies) assert.ok(new Policy(text).text.startsWith(text.split(":")[0]));
});
