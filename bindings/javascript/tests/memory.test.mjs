import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { inspect } from "node:util";

import { Limiter, ManualClock } from "sluicegate";
import { histories, isSteady, replayInMemory } from "./histories.mjs";
import { TESTS } from "./portable.mjs";

for (const [name, run] of Object.entries(TESTS)) test(name, run);

const COUNT = process.env.SLUICEGATE_HISTORY_COUNT ?? "1450";

test("traces_and_random_histories_decide_as_oracle", async () => {
  const traces = histories("traces").filter(isSteady);
  assert.ok(traces.length > 50);
  const random = [...histories("7000000", COUNT), ...histories("holds", "8000000", COUNT)].filter(isSteady);
  const steps = (await replayInMemory(traces)) + (await replayInMemory(random));
  console.log(`figure: ${steps} decisions in memory, 0 differ`);
  assert.ok(COUNT !== "1450" || steps >= 100_000);
});

test("replay_wrong_answer_is_detected", async () => {
  const found = histories("holds", "8000000", "20").filter(isSteady);
  for (const operation of ["take", "hold", "settle"]) {
    const history = found.find((it) => it.some((step) => step.operation === operation && step.answer?.[0] === 1));
    const step = history.find((it) => it.operation === operation && it.answer?.[0] === 1);
    step.answer[2] += 1;
    await assert.rejects(replayInMemory([history]), /differs/);
    step.answer[2] -= 1;
  }
});

test("common_js_and_module_have_the_same_exports", async () => {
  const required = createRequire(import.meta.url)("sluicegate");
  assert.deepEqual(Object.keys(required).sort(), Object.keys(await import("sluicegate")).sort());
  assert.equal(required.Limiter.inMemory().takeSync("k", "gcra:1/1h").allowed, true);
});

test("memory_counts_each_of_a_million_keys", () => {
  for (const settings of [{}, { maxMemory: 256 << 20 }]) {
    const limiter = Limiter.inMemory({ clock: new ManualClock(), ...settings });
    for (const allowed of [true, false]) {
      let differ = 0;
      for (let user = 0; user < 1_000_000; user += 1) differ += Number(limiter.takeSync(`user${user}`, "fixed-window:1/1h").allowed !== allowed);
      assert.equal(differ, 0);
    }
    assert.equal(limiter.usage().keys, 1_000_000);
  }
});

test("console_log_shows_what_a_decision_says", () => {
  const limiter = Limiter.inMemory({ clock: new ManualClock() });
  limiter.takeSync("k", "gcra:30/1m:burst=1");
  const denied = limiter.takeSync("k", "gcra:30/1m:burst=1");
  assert.equal(
    inspect(denied, { breakLength: Infinity }),
    "Decision { allowed: false, limit: 1, remaining: 0, retryAfterMs: 2000, resetAfterMs: 2000, delayMs: 0, source: 'store', policy: 'gcra:30/1m:burst=1' }",
  );
  assert.match(inspect(limiter.takeSync("k", "gcra:30/1m:burst=1", 2)), /never: true/);
  assert.match(inspect({ decisions: [denied] }, { depth: 4 }), /Decision \{\n? *allowed: false/);
});

test("key_that_is_too_long_uses_no_memory", async () => {
  const limiter = Limiter.inMemory();
  limiter.takeSync("k", "gcra:1/1h");
  const bytes = () => limiter.store.core.wasm.memory.buffer.byteLength;
  const before = bytes();
  for (const key of ["k".repeat(20 << 20), new Uint8Array(20 << 20)]) {
    await assert.rejects(limiter.take(key, "gcra:1/1h"), /invalid key: expected 1 to 65536 bytes, found 20971520/);
    await assert.rejects(limiter.takeAll([{ key, policy: "gcra:1/1h" }, { key: "k", policy: "gcra:1/1h" }]), /found 20971520/);
  }
  assert.equal(bytes(), before);
});

test("system_clock_agrees_with_wall_clock", () => {
  const limiter = Limiter.inMemory();
  const day = limiter.takeSync("k", "fixed-window:5/day");
  const left = 86_400_000 - (Date.now() % 86_400_000);
  assert.ok(Math.abs(day.resetAfterMs - left) < 5000);
});
