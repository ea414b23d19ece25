// The portable tests in Bun, Deno and workerd, as npm has them; and what differs there.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { TESTS } from "./portable.mjs";
import { freePort, startRedis, startSluicegate, until } from "./servers.mjs";

const HERE = fileURLToPath(new URL("./", import.meta.url));
const PACKAGE = fileURLToPath(new URL("../", import.meta.url));
const COUNT = Object.keys(TESTS).length;

/** The program of a runtime: in the package of this platform, or where that has been moved at its installation. */
function program(scope, path, moved) {
  const [found] = readdirSync(`${PACKAGE}node_modules/${scope}`).filter((it) => /linux|darwin/.test(it));
  return [`${PACKAGE}node_modules/${scope}/${found}/${path}`, `${PACKAGE}node_modules/${moved}`].find(existsSync);
}

const RUNTIMES = {
  bun: [program("@oven", "bin/bun", "bun/bin/bun.exe"), []],
  deno: [program("@deno", "deno", "deno/deno"), ["run", "--allow-read", "--allow-env", "--allow-net"]],
};

function output(runtime, ...words) {
  const [command, options] = RUNTIMES[runtime];
  const { stdout, stderr, status } = spawnSync(command, [...options, ...words], { cwd: HERE, encoding: "utf8", timeout: 120_000, env: { ...process.env, NO_COLOR: "1" } });
  assert.equal(status, 0, stdout + stderr);
  return stdout;
}

for (const runtime of Object.keys(RUNTIMES)) {
  test(`${runtime}_passes_the_portable_tests`, () => {
    assert.deepEqual(JSON.parse(output(runtime, "run-portable.mjs")), { tests: COUNT, failures: [] });
  });

  test(`${runtime}_uses_a_server`, async () => {
    const server = await startSluicegate();
    assert.deepEqual(JSON.parse(output(runtime, "run-server.mjs", `redis://127.0.0.1:${server.port}`)), [true, false, "cache"]);
    await server.stop();
  });
}

test("bun_client_of_redis_is_supported", async () => {
  const server = await startRedis();
  assert.deepEqual(JSON.parse(output("bun", "run-bun-redis.mjs", `redis://127.0.0.1:${server.port}`)), [true, false, "cache", true, false]);
  await server.stop();
});

test("workerd_passes_the_portable_tests", async () => {
  const port = await freePort();
  const folder = mkdtempSync(join(tmpdir(), "sluicegate-workerd-"));
  const modules = readdirSync(`${PACKAGE}dist/esm`).filter((it) => it.endsWith(".js") && it !== "nest.js");
  const bundled = [
    ["worker", `${HERE}worker.mjs`, "esModule"],
    ["portable.mjs", `${HERE}portable.mjs`, "esModule"],
    ...modules.map((it) => [it, `${PACKAGE}dist/esm/${it}`, "esModule"]),
    ["module.mjs", `${PACKAGE}dist/module/workerd.mjs`, "esModule"],
    ["sluicegate.wasm", `${PACKAGE}dist/module/sluicegate.wasm`, "wasm"],
  ];
  // What a bundler does: it resolves the names of packages.
  const resolved = bundled.map(([name, path, kind], index) => {
    // Paths are relative to the configuration.
    const file = `${index}`;
    if (kind === "wasm") copyFileSync(path, join(folder, file));
    else writeFileSync(join(folder, file), resolve(path));
    return `(name = ${JSON.stringify(name)}, ${kind} = embed "${file}")`;
  });
  const config = join(folder, "config.capnp");
  writeFileSync(
    config,
    `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = (modules = [${resolved.join(", ")}], compatibilityDate = "2026-01-01", compatibilityFlags = ["nodejs_compat"])),
    (name = "internet", network = (allow = ["local"])),
  ],
  sockets = [(name = "http", address = "127.0.0.1:${port}", http = (), service = "main")]
);`,
  );
  const child = spawn(program("@cloudflare", "bin/workerd", "workerd/bin/workerd"), ["serve", config], { stdio: ["ignore", "inherit", "inherit"] });
  try {
    const ask = (path) => fetch(`http://127.0.0.1:${port}${path}`).catch(() => undefined);
    await until(async () => (await ask("/ready"))?.status === 200);
    assert.deepEqual(await (await ask("/portable")).json(), { tests: COUNT, failures: [] });
    const server = await startSluicegate();
    const url = encodeURIComponent(`redis://127.0.0.1:${server.port}`);
    assert.deepEqual(await (await ask(`/server?url=${url}`)).json(), [[true, "store"], [false, "store"]]);
    assert.deepEqual(await (await ask(`/server?url=${url}`)).json(), [[false, "store"], [false, "cache"]]);
    await server.stop();
    // The limiter of the whole worker, made before its first request.
    assert.deepEqual([(await ask("/limited")).status, (await ask("/limited")).status], [200, 429]);
  } finally {
    child.kill("SIGKILL");
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    rmSync(folder, { recursive: true });
  }
});


function resolve(path) {
  return readFileSync(path, "utf8")
    .replaceAll('"sluicegate/hono"', '"hono.js"')
    .replaceAll('"sluicegate"', '"index.js"')
    .replaceAll('"#module"', '"module.mjs"')
    .replaceAll(/from "\.\/([^"]+)"/g, 'from "$1"');
}
