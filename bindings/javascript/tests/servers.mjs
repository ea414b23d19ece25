// Servers for tests: each on a free port of loopback, asked until it answers, and ended with the process that started it.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createConnection, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const PROGRAM = process.env.SLUICEGATE_PROGRAM ?? `${ROOT}target/debug/sluicegate`;

/** A port on which nothing listens. */
export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Asks until the answer is true. */
export async function until(asks, deadlineMs = 30_000) {
  const end = performance.now() + deadlineMs;
  while (!(await asks())) {
    if (performance.now() > end) throw new Error("nothing happened in time");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Whether a server replies to a PING. */
export function answers(port) {
  return new Promise((resolve) => {
    const socket = createConnection(port, "127.0.0.1", () => socket.write("PING\r\n"));
    const end = (answer) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(1000, () => end(false));
    socket.on("data", (bytes) => end(bytes.toString().startsWith("+PONG")));
    socket.on("error", () => end(false));
  });
}

class Server {
  constructor(child, port) {
    Object.assign(this, { child, port });
  }

  /** Stops its process, which then answers nothing, but keeps its connections. */
  async pause() {
    this.child.kill("SIGSTOP");
    // The signal returns before the process has stopped.
    const states = () => readdirSync(`/proc/${this.child.pid}/task`).map((it) => readFileSync(`/proc/${this.child.pid}/task/${it}/stat`, "utf8"));
    await until(() => states().every((it) => /^.*\) T/s.test(it)));
  }

  resume() {
    this.child.kill("SIGCONT");
  }

  async stop() {
    this.child.kill("SIGCONT");
    this.child.kill("SIGKILL");
    if (this.child.exitCode === null && this.child.signalCode === null) await once(this.child, "exit");
  }
}

async function started(program, argumentsOf, given) {
  const port = given ?? (await freePort());
  const child = spawn(program, argumentsOf(port), { stdio: "ignore" });
  process.on("exit", () => child.kill("SIGKILL"));
  await until(() => answers(port));
  return new Server(child, port);
}

/** The servers of Redis and Valkey, by name. `cargo xtask javascript` says where Valkey is. */
export function redisPrograms() {
  const { VALKEY_SERVER: valkey } = process.env;
  return { redis: "redis-server", ...(valkey === undefined ? {} : { valkey }) };
}

export function startRedis(program = "redis-server", options = []) {
  return started(program, (port) => ["--port", `${port}`, "--save", "", "--bind", "127.0.0.1", "--loglevel", "warning", ...options]);
}

/** A cluster of three primaries. Returns their servers. */
export async function startCluster(program = "redis-server") {
  const folder = mkdtempSync(join(tmpdir(), "sluicegate-cluster-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  const nodes = [];
  for (let index = 0; index < 3; index += 1) {
    const path = join(folder, String(index));
    mkdirSync(path);
    // The port of its bus is not one of those that the system picks.
    nodes.push(await startRedis(program, ["--cluster-enabled", "yes", "--cluster-port", String(await freePort()), "--dir", path]));
  }
  const addresses = nodes.map((it) => `127.0.0.1:${it.port}`);
  const { status, stdout, stderr } = spawnSync("redis-cli", ["--cluster", "create", ...addresses, "--cluster-yes"], { encoding: "utf8" });
  if (status !== 0) throw new Error(stdout + stderr);
  const ask = (node, ...words) => spawnSync("redis-cli", ["-p", `${node.port}`, ...words], { encoding: "utf8" }).stdout;
  await until(() => nodes.every((node) => ask(node, "CLUSTER", "INFO").includes("cluster_state:ok")));
  return nodes;
}

/** A sentinel that finds the primary named `main`. */
export function startSentinel(primary) {
  const folder = mkdtempSync(join(tmpdir(), "sluicegate-sentinel-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "sentinel.conf");
  writeFileSync(file, `sentinel monitor main 127.0.0.1 ${primary.port} 1\n`);
  return started("redis-server", (port) => [file, "--sentinel", "--port", `${port}`, "--bind", "127.0.0.1"]);
}

/** On a free port, unless one is given. */
export function startSluicegate(options = [], port = undefined) {
  if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} is missing: run \`cargo build -p sluicegate-cli\``);
  return started(PROGRAM, (port) => ["serve", "--listen", `127.0.0.1:${port}`, "--http", "off", "--grpc", "off", ...options], port);
}
