// Histories with the answers of the oracle, which is written from the semantics and not from the core; and their replay.

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";

import { Limiter, ManualClock, OperationError, PolicyError, StoreError } from "sluicegate";
import { ROOT } from "./servers.mjs";

const PROGRAM = process.env.SLUICEGATE_HISTORIES ?? `${ROOT}target/debug/examples/histories`;

/** Histories of the kind: `["7000000", "300"]` random ones, `["holds", ...]` with holds, or `["traces"]`. */
export function histories(...words) {
  const [program, given] = existsSync(PROGRAM)
    ? [PROGRAM, words]
    : ["cargo", ["run", "--quiet", "--locked", "-p", "sluicegate-conformance", "--example", "histories", "--", ...words]];
  const { stdout, status } = spawnSync(program, given, { cwd: ROOT, encoding: "utf8", maxBuffer: 1 << 30 });
  if (status !== 0) throw new Error("the histories cannot be made");
  const found = new Map();
  for (const line of stdout.trimEnd().split("\n")) {
    const [history, now, policy, operation, cost, wait, answer, id = ""] = line.split("\t");
    const step = {
      now: Number(now),
      policy,
      operation,
      cost: Number(cost),
      wait: Number(wait),
      answer: answer === "error" ? undefined : answer.split(" ").map(Number),
      id: Buffer.from(id, "hex"),
    };
    if (!found.has(history)) found.set(history, []);
    found.get(history).push(step);
  }
  return [...found.values()];
}

/** A table drops keys that have recovered, and therefore does not follow a clock that steps back. */
export function isSteady(history) {
  return history.every((step, index) => index === 0 || history[index - 1].now <= step.now);
}

/** What a step does, as a promise. Microseconds are milliseconds with a fraction. */
function call(limiter, key, { operation, policy, cost, wait, id }) {
  const ms = wait === -1 ? undefined : wait / 1000;
  switch (operation) {
    case "reserve":
      return limiter.reserve(key, policy, { cost, maxWait: ms });
    case "reset":
      return limiter.reset(key);
    case "hold":
      return limiter.hold(key, policy, { cost, id, ...(ms === undefined ? {} : { ttl: ms }) }).then((hold) => hold.decision);
    case "settle":
      return limiter.settle(key, policy, id, cost === -1 ? undefined : cost);
    case "renew":
      return limiter.renew(key, policy, id, ms);
    default:
      return limiter[operation](key, policy, cost);
  }
}

/** Replays a history on a key. Returns the number of its steps; throws at the first that differs. */
export async function replay(limiter, clock, key, history) {
  for (const step of history) {
    clock.micros = step.now;
    let given;
    try {
      const result = await call(limiter, key, step);
      given = step.operation === "reset" ? undefined : result.integers();
    } catch (error) {
      if (!(error instanceof OperationError || error instanceof PolicyError || error instanceof StoreError)) throw error;
      given = "error";
    }
    const expected = step.operation === "reset" ? undefined : (step.answer ?? "error");
    if (String(given) !== String(expected)) {
      throw new Error(`differs: ${JSON.stringify({ ...step, id: step.id.toString("hex") })}\n  expected ${expected}\n  given    ${given}`);
    }
  }
  return history.length;
}

/** Replays histories in memory, each with a limiter and a clock of its own. Returns the number of steps. */
export async function replayInMemory(found) {
  let steps = 0;
  for (const history of found) {
    const clock = new ManualClock();
    steps += await replay(Limiter.inMemory({ clock, maxMemory: 2 << 20 }), clock, "key", history);
  }
  return steps;
}
