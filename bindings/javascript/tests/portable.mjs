// Tests that every runtime runs: they use nothing but the package and the language. Each is a name and a function.

import {
  Denied,
  InvalidKey,
  Limiter,
  ManualClock,
  OperationError,
  Policy,
  PolicyError,
  SettingsError,
} from "sluicegate";

function equal(given, expected) {
  const [left, right] = [given, expected].map((it) => JSON.stringify(it));
  if (left !== right) throw new Error(`expected ${right}, found ${left}`);
}

async function fails(call, kind, text) {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof kind)) throw error;
    equal(error.message.includes(text) ? text : error.message, text);
    return error;
  }
  throw new Error(`expected ${kind.name}: ${text}`);
}

function local(settings = {}) {
  const clock = new ManualClock();
  return { clock, limiter: Limiter.inMemory({ clock, ...settings }) };
}

export const TESTS = {
  async take_spent_burst_is_denied_until_retry_time() {
    const { clock, limiter } = local();
    const policy = "gcra:30/1m:burst=2";
    equal((await limiter.take("user7", policy, 2)).integers(), [1, 2, 0, 0, 4_000_000, 0, 0]);
    const denied = limiter.takeSync("user7", policy);
    equal([denied.allowed, denied.retryAfterMs, denied.never, denied.source], [false, 2000, false, "store"]);
    clock.advance(1999.999);
    equal((await limiter.take("user7", policy)).allowed, false);
    clock.advance(0.001);
    equal((await limiter.take("user7", policy)).allowed, true);
  },

  async take_cost_above_capacity_never_passes() {
    const { limiter } = local();
    const denied = await limiter.take("user7", "gcra:30/1m:burst=2", 3);
    equal([denied.never, denied.retryAfterMs], [true, undefined]);
    await fails(() => limiter.require("user7", "gcra:30/1m:burst=2", 3), Denied, "more than the limit of 2");
  },

  async operations_change_the_usage_of_a_key() {
    const { limiter } = local();
    const policy = "fixed-window:10/1h";
    equal((await limiter.charge("k", policy, 4)).remaining, 6);
    equal((await limiter.refund("k", policy, 1)).remaining, 7);
    equal((await limiter.peek("k", policy, 8)).allowed, false);
    equal((await limiter.peek("k", policy)).remaining, 7);
    equal(await limiter.reset("k"), true);
    equal(await limiter.reset("k"), false);
    equal((await limiter.reserve("q", "gcra:1/1s", { maxWait: 5 })).delayMs, 0);
    equal((await limiter.reserve("q", "gcra:1/1s", { maxWait: 5000 })).delayMs, 1000);
  },

  async policy_change_carries_usage_over() {
    const { limiter } = local();
    await limiter.take("k", "fixed-window:10/1h", 10);
    equal((await limiter.take("k", "fixed-window:30/1h")).remaining, 19);
  },

  async keys_may_be_text_or_bytes() {
    const { limiter } = local();
    const long = "é".repeat(30_000);
    for (const key of ["ключ", long, "a".repeat(65_536)]) {
      equal((await limiter.take(key, "gcra:1/1h")).allowed, true);
      equal((await limiter.take(new TextEncoder().encode(key), "gcra:1/1h")).allowed, false);
    }
    await fails(() => limiter.take("", "gcra:1/1h"), InvalidKey, "expected 1 to 65536 bytes, found 0");
    await fails(() => limiter.take("a".repeat(65_537), "gcra:1/1h"), InvalidKey, "found 65537");
  },

  async keys_of_other_types_are_invalid() {
    const { limiter } = local();
    const policy = "gcra:1/1h";
    for (const [key, type] of [[7, "number"], [7n, "bigint"], [null, "null"], [undefined, "undefined"], [Symbol("k"), "symbol"], [[1, 2], "object"], [new ArrayBuffer(4), "object"], [new Uint16Array(2), "object"], [new DataView(new ArrayBuffer(4)), "object"]]) {
      const text = `invalid key of type \`${type}\`: expected a string or a Uint8Array`;
      await fails(() => limiter.take(key, policy), InvalidKey, text);
      await fails(() => limiter.peek(key, policy), InvalidKey, text);
      await fails(() => limiter.takeAll([{ key: "a", policy }, { key, policy }]), InvalidKey, text);
      await fails(() => limiter.takeMany([{ key, policy }]), InvalidKey, text);
      await fails(() => limiter.hold(key, "concurrency:1/30s"), InvalidKey, text);
      await fails(() => limiter.reset(key), InvalidKey, text);
    }
    await fails(() => limiter.hold("k", "concurrency:1/30s", { id: 7 }), OperationError, "invalid id of type `number`");
    // A part of a larger buffer is a key of its own.
    const bytes = new Uint8Array([1, 2, 3, 4]);
    equal((await limiter.take(bytes.subarray(1, 3), policy)).allowed, true);
    equal((await limiter.take(new Uint8Array([2, 3]), policy)).allowed, false);
    equal((await limiter.take(bytes, policy)).allowed, true);
  },

  async text_and_bytes_of_a_call_are_one_key_if_their_bytes_are() {
    const { limiter } = local();
    const policy = "gcra:5/1h:burst=5";
    const each = async (...keys) => (await limiter.takeAll(keys.map((key) => ({ key, policy })))).each.length;
    equal(await each("é", new Uint8Array([0xe9])), 2);
    equal(await each("é", new Uint8Array([0xc3, 0xa9]), "other"), 3);
    equal((await limiter.peek("é", policy)).remaining, 3);
    equal((await limiter.peek(new Uint8Array([0xe9]), policy)).remaining, 4);
  },

  async repeated_keys_are_taken_once_and_have_a_decision_each() {
    const { limiter } = local();
    const take = (key, limit) => ({ key, policy: `fixed-window:${limit}/1m` });
    const takes = [take("a", 5), take("a", 5), take("b", 1)];
    for (const [allowed, remaining] of [[true, [4, 4, 0]], [false, [4, 4, 0]]]) {
      const decision = await limiter.takeAll(takes);
      equal([decision.allowed, decision.key, decision.each.map((it) => it.remaining)], [allowed, 2, remaining]);
      equal(decision.each[decision.key].allowed, allowed);
    }
    const same = await limiter.takeAll([take("c", 5), take("c", 5)]);
    equal([same.allowed, same.key, same.each.map((it) => it.remaining)], [true, 0, [4, 4]]);
  },

  async several_keys_are_taken_all_or_none() {
    const { limiter } = local();
    const takes = [
      { key: "user", policy: "gcra:5/1h:burst=5" },
      { key: "tenant", policy: "gcra:1/1h:burst=1" },
    ];
    const first = await limiter.takeAll(takes);
    equal([first.allowed, first.key, first.each.map((it) => it.remaining)], [true, 1, [4, 0]]);
    const second = await limiter.takeAll(takes);
    equal([second.allowed, second.key, second.policy], [false, 1, "gcra:1/1h:burst=1"]);
    equal((await limiter.peek("user", "gcra:5/1h:burst=5")).remaining, 4);
    const many = await limiter.takeMany([...takes, { key: "x", policy: "nonsense" }]);
    equal([many[0].allowed, many[1].allowed, many[2] instanceof PolicyError], [true, false, true]);
    await fails(() => limiter.takeAll([]), OperationError, "expected 1 to 8");
  },

  async hold_is_open_until_it_is_settled() {
    const { limiter } = local();
    const hold = await limiter.hold("model", "concurrency:1/30s");
    equal([hold.allowed, hold.open], [true, true]);
    equal((await limiter.hold("model", "concurrency:1/30s")).allowed, false);
    equal((await hold.settle()).allowed, true);
    equal([hold.open, (await hold.settle()).never], [false, true]);
    equal((await limiter.hold("model", "concurrency:1/30s")).allowed, true);
  },

  async hold_is_settled_at_the_end_of_await_using() {
    const { limiter } = local();
    const hold = await limiter.hold("model", "token-bucket:100/1h", { cost: 60, ttl: 1000 });
    // What `await using` calls.
    await hold[Symbol.asyncDispose]();
    equal((await limiter.peek("model", "token-bucket:100/1h")).remaining, 40);
    await hold[Symbol.asyncDispose]();
    equal((await limiter.peek("model", "token-bucket:100/1h")).remaining, 40);
  },

  async hold_all_settles_each_key_by_itself() {
    const { limiter } = local();
    const keys = [
      { key: "{a}:requests", policy: "gcra:10/1h:burst=10" },
      { key: "{a}:tokens", policy: "token-bucket:1000/1h", cost: 400 },
    ];
    const hold = await limiter.holdAll(keys, { ttl: 60_000 });
    await fails(() => hold.settle([1]), OperationError, "one for each of 2 keys");
    await hold.settle([1, 150]);
    equal((await limiter.peek("{a}:requests", keys[0].policy)).remaining, 9);
    equal((await limiter.peek("{a}:tokens", keys[1].policy)).remaining, 850);
  },

  async hold_by_id_is_settled_and_renewed_by_name() {
    const { clock, limiter } = local();
    const policy = "concurrency:1/30s";
    await limiter.hold("k", policy, { id: "job 1", ttl: 1000 });
    equal((await limiter.hold("k", policy, { id: "job 1", ttl: 1000 })).allowed, true);
    clock.advance(900);
    equal((await limiter.renew("k", policy, "job 1", 1000)).allowed, true);
    clock.advance(900);
    equal((await limiter.settle("k", policy, "job 1")).allowed, true);
    equal((await limiter.settle("k", policy, "job 1")).never, true);
  },

  async hold_is_renewed_while_it_is_open() {
    const limiter = Limiter.inMemory();
    const hold = await limiter.hold("k", "concurrency:1/1s", { ttl: 500, renew: true });
    const end = performance.now() + 1100;
    while (performance.now() < end) {
      equal((await limiter.peek("k", "concurrency:1/1s")).allowed, false);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    await hold.settle();
    equal((await limiter.peek("k", "concurrency:1/1s")).allowed, true);
  },

  async wait_ends_when_units_are_available() {
    const limiter = Limiter.inMemory();
    await limiter.take("k", "gcra:20/1s:burst=1");
    const start = performance.now();
    equal((await limiter.wait("k", "gcra:20/1s:burst=1", { timeout: 5000 })).allowed, true);
    equal(performance.now() - start > 40, true);
    const denied = await limiter.wait("k", "fixed-window:1/1h", { cost: 2, timeout: 5000 });
    equal([denied.allowed, denied.never], [false, true]);
  },

  async wait_that_is_aborted_gives_its_units_back() {
    const limiter = Limiter.inMemory();
    const policy = "gcra:1/1m:burst=1";
    await limiter.take("k", policy);
    const before = (await limiter.peek("k", policy)).resetAfterMs;
    const abort = new AbortController();
    const waits = limiter.wait("k", policy, { timeout: 120_000, signal: abort.signal });
    abort.abort(new Error("enough"));
    await fails(() => waits, Error, "enough");
    equal((await limiter.peek("k", policy)).resetAfterMs <= before, true);
    await fails(() => limiter.wait("k", policy, { timeout: 1, signal: abort.signal }), Error, "enough");
  },

  async hold_that_is_aborted_leaves_nothing_behind() {
    const limiter = Limiter.inMemory();
    const hold = await limiter.hold("k", "concurrency:1/30s");
    const abort = new AbortController();
    const waits = limiter.hold("k", "concurrency:1/30s", { timeout: 20_000, signal: abort.signal });
    setTimeout(() => abort.abort(new Error("enough")), 20);
    await fails(() => waits, Error, "enough");
    await hold.settle();
    equal((await limiter.peek("k", "concurrency:1/30s")).allowed, true);
  },

  async hold_that_waits_passes_when_another_is_settled() {
    const limiter = Limiter.inMemory();
    const hold = await limiter.hold("k", "concurrency:1/30s");
    setTimeout(() => void hold.settle(), 20);
    equal((await limiter.hold("k", "concurrency:1/30s", { timeout: 20_000 })).allowed, true);
  },

  async policy_is_text_or_objects() {
    const limit = { algorithm: "gcra", limit: 30, per: "1m", burst: 16 };
    equal(new Policy(limit).text, "gcra:30/1m:burst=16");
    equal(new Policy([limit, { algorithm: "fixed-window", limit: 500, per: "day", tz: "Europe/Berlin" }]).text, "gcra:30/1m:burst=16,fixed-window:500/day:tz=Europe/Berlin");
    equal(new Policy({ algorithm: "sliding-log", limit: 5, perMs: 1500, keep: "1h", keepMax: 100, count: "all" }).text, "sliding-log:5/1500ms:count=all:keep=1h:keep-max=100");
    equal(new Policy("gcra:10/1s").and(new Policy("fixed-window:500/1h", { onError: "allow" })).onError, "allow");
    equal(new Policy("gcra:30/1m:burst=16").explain().startsWith("gcra:30/1m:burst=16: at once 16 units"), true);
    await fails(() => new Policy("gcra:30/0s"), PolicyError, "invalid period `0s`: expected 1ms to 366d");
    await fails(() => new Policy({ limit: 1 }), PolicyError, "expected the members algorithm, limit, and per or perMs");
    equal(new Policy({ ...limit, per: undefined, perMs: 60_000, burst: 2 }).text, "gcra:30/1m:burst=2");
    equal(new Policy({ algorithm: "sliding-log", limit: 5, per: "1s", keepMs: 2500 }).text, "sliding-log:5/1s:keep=2500ms");
    // Someone who writes 60 means seconds.
    await fails(() => new Policy({ ...limit, per: 60 }), PolicyError, 'invalid per `60`: expected a text with a unit, such as "60s", or milliseconds as perMs');
    await fails(() => new Policy({ ...limit, keep: 60 }), PolicyError, "invalid keep `60`: expected a text with a unit");
    await fails(() => new Policy({ ...limit, perMs: 60 }), PolicyError, "invalid perMs `60` beside per: expected one of them");
    await fails(() => new Policy({ ...limit, per: undefined, perMs: "60" }), PolicyError, 'invalid perMs `"60"`: expected milliseconds');
    await fails(() => new Policy("gcra:1/1s", { onError: "deny" }).and(new Policy("gcra:1/1s", { onError: "fail" })), PolicyError, "expected one value");
  },

  async arguments_that_are_invalid_are_named() {
    const { limiter } = local();
    await fails(() => limiter.take("k", "gcra:1/1s", -1), OperationError, "invalid cost `-1`: expected a whole number from 0 to 4294967295");
    await fails(() => limiter.take("k", "gcra:1/1s", 1.5), OperationError, "invalid cost `1.5`");
    await fails(() => limiter.take("k", "concurrency:1/1s"), OperationError, "use hold");
    await fails(() => limiter.wait("k", "gcra:1/1s", { timeout: Number.NaN }), OperationError, "invalid timeout `NaN`");
    await fails(() => limiter.wait("k", "gcra:1/1s"), OperationError, "invalid timeout `undefined`: expected milliseconds");
    await fails(() => limiter.wait("k", "gcra:1/1s", { timeout: 1, signal: {} }), OperationError, "invalid signal `{}`: expected an AbortSignal");
    await fails(() => limiter.hold("k", "concurrency:1/1s", { renew: "yes" }), OperationError, 'invalid renew `"yes"`: expected true or false');
    await fails(() => limiter.reserve("k", "gcra:1/1s"), OperationError, "invalid maxWait `undefined`: expected milliseconds");
    await fails(() => limiter.take("k", "gcra:1/1s", "2"), OperationError, 'invalid cost `"2"`: expected a whole number');
    await fails(() => limiter.take("k", "gcra:1/1s", { cost: 2 }), OperationError, 'invalid cost `{"cost":2}`: expected a whole number');
    await fails(() => limiter.hold("k", "gcra:1/1s"), OperationError, "missing ttl: expected 1 to 86400000 milliseconds; only a policy with `concurrency` has a default");
    await fails(() => limiter.hold("k", "concurrency:1/30s", { ttl: 60_000 }), OperationError, "invalid ttl `60000`: expected 1 to 30000 milliseconds");
    for (const call of ["takeAll", "takeMany", "holdAll"]) {
      await fails(() => limiter[call]({}), OperationError, "invalid keys `{}`: expected a list of objects with key, policy and cost");
    }
    for (const ttl of [0, 0.9, Infinity, 86_400_001]) {
      await fails(() => limiter.hold("k", "gcra:1/1s", { ttl }), OperationError, `invalid ttl \`${ttl}\`: expected 1 to 86400000 milliseconds`);
      await fails(() => limiter.renew("k", "gcra:1/1s", "id", ttl), OperationError, `invalid ttl \`${ttl}\`: expected 1 to 86400000 milliseconds`);
    }
    await fails(() => limiter.hold("k", "gcra:1/1s", { id: "", ttl: 5 }), OperationError, "invalid id of 0 bytes");
    await fails(() => limiter.take("k", "@gold"), PolicyError, "only a server knows the names");
    await fails(() => Limiter.inMemory({ maxMemory: -1 }), SettingsError, "invalid maxMemory `-1`");
    await fails(() => Limiter.inMemory({ memory: 1 }), SettingsError, "unknown setting `memory`: expected one of maxMemory, clock");
    await fails(() => limiter.take("k", 5), PolicyError, "invalid policy of type `number`");
    await fails(() => limiter.take("gcra:1/1s", "user7"), PolicyError, "invalid policy `user7`: the key `gcra:1/1s` looks like a policy; expected the key first, then the policy");
  },

  async options_that_are_unknown_or_invalid_are_named_at_once() {
    const { limiter } = local();
    const policy = "gcra:9/1s:burst=9";
    await fails(() => limiter.hold("k", policy, { ttl: 5, timeoutMs: 5 }), SettingsError, "unknown option `timeoutMs`: expected one of cost, ttl, id, timeout, signal, renew");
    await fails(() => limiter.hold("k", policy, 5), SettingsError, "invalid options `5`: expected an object with cost, ttl");
    await fails(() => limiter.holdAll([{ key: "k", policy }], { ttl: 5, cost: 2 }), SettingsError, "unknown option `cost`");
    await fails(() => limiter.wait("k", policy, { timeout: 5, maxWait: 5 }), SettingsError, "unknown option `maxWait`: expected one of cost, timeout");
    await fails(() => limiter.reserve("k", policy, { maxWait: 5, timeout: 5 }), SettingsError, "unknown option `timeout`: expected one of cost, maxWait");
    for (const call of ["takeAll", "takeMany", "holdAll"]) {
      await fails(() => limiter[call]([{ key: "k", policy, units: 2 }], { ttl: 5 }), SettingsError, "unknown member `units`: expected one of key, policy, cost");
    }
    equal((await limiter.peek("k", policy)).remaining, 9);
    await fails(() => new Policy(policy, { onerror: "allow" }), SettingsError, "unknown setting `onerror`: expected onError");
    await fails(() => new Policy(policy, { lease: 10 }), SettingsError, "unknown setting `lease`");
    for (const onError of ["open", "local=0/4", "local=5/4", "local=1", true]) {
      const text = `invalid onError \`${JSON.stringify(onError)}\`: expected deny, allow, fail, local or a share such as local=1/4`;
      await fails(() => new Policy(policy, { onError }), SettingsError, text);
      await fails(() => Limiter.server("redis://127.0.0.1", { onError }), SettingsError, text);
    }
    equal(new Policy(policy, { onError: "local=1/4" }).onError, "local=1/4");
    await fails(() => Limiter.server("redis://127.0.0.1", { timeout: "5s" }), SettingsError, 'invalid timeout `"5s"`: expected milliseconds');
    await fails(() => Limiter.server("redis://127.0.0.1", { maxDenialCache: -1 }), SettingsError, "invalid maxDenialCache `-1`");
    await fails(() => Limiter.server("redis://127.0.0.1", { keyPrefix: 5 }), SettingsError, "invalid keyPrefix `5`: expected a string");
    await fails(() => Limiter.server("redis://127.0.0.1", { useModule: "no" }), SettingsError, 'invalid useModule `"no"`: expected true or false');
    await fails(() => Limiter.server("redis://127.0.0.1", { onUnavailable: "log" }), SettingsError, 'invalid onUnavailable `"log"`: expected a function');
    await fails(() => Limiter.inMemory({ clock: 5 }), SettingsError, "invalid clock `5`");
    await fails(() => new Limiter(), SettingsError, "invalid `new Limiter()`: expected `Limiter.inMemory()`");
    await fails(() => limiter.takeSync("k", policy).headers("x", "draft"), SettingsError, 'invalid style of headers `"draft"`: expected ietf or x-ratelimit');
  },

  async limiter_that_is_closed_makes_no_decision() {
    const { limiter } = local();
    const policy = "gcra:1/1h";
    await limiter.take("k", policy);
    await limiter.close();
    await limiter.close();
    for (const call of [() => limiter.take("k", policy), () => limiter.takeSync("k", policy), () => limiter.takeMany([{ key: "k", policy }]), () => limiter.hold("k", policy, { ttl: 5 }), () => limiter.wait("k", policy, { timeout: 5 }), () => limiter.reset("k")]) {
      await fails(call, OperationError, "the limiter is closed");
    }
  },

  async denial_of_a_full_table_says_so() {
    const { limiter } = local({ maxMemory: 0 });
    const policy = "gcra:1/1s";
    const denial = [false, "table_full", 1000];
    const shown = ({ allowed, source, retryAfterMs }) => [allowed, source, retryAfterMs];
    const full = { key: "user0", policy };
    for (let user = 0; limiter.takeSync(full.key, policy).allowed; user += 1) full.key = `user${user + 1}`;
    equal(shown(limiter.takeSync(full.key, policy)), denial);
    equal(shown(await limiter.take(full.key, policy)), denial);
    equal(shown(await limiter.reserve(full.key, policy, { maxWait: 0 })), denial);
    equal(shown(await limiter.takeAll([full, { key: "other", policy }])), denial);
    equal(shown((await limiter.takeMany([full]))[0]), denial);
    equal(shown(await limiter.wait(full.key, policy, { timeout: 0 })), denial);
    equal(shown((await limiter.hold(full.key, policy, { ttl: 5 })).decision), denial);
    // A denial by the limit, with the same wait.
    const denied = limiter.takeSync("user0", policy);
    equal(shown(denied), [false, "store", 1000]);
    equal(denied.never, false);
    equal((await limiter.charge(full.key, policy)).source, "store");
  },

  async denied_has_the_time_of_its_decision() {
    const { limiter } = local();
    await limiter.take("k", "gcra:30/1m:burst=1");
    const { retryAfterMs, message } = await fails(() => limiter.require("k", "gcra:30/1m:burst=1"), Denied, "denied: retry after 2000 ms");
    equal([retryAfterMs, message], [2000, "denied: retry after 2000 ms"]);
  },

  async headers_and_problem_describe_a_denial() {
    const { limiter } = local();
    const policy = "fixed-window:2/1m";
    equal((await limiter.take("k", policy, 2)).headers("login"), { "ratelimit-policy": '"login";q=2;w=60', ratelimit: '"login";r=0;t=60' });
    const denied = await limiter.take("k", policy);
    equal(denied.headers("login")["retry-after"], "60");
    equal(denied.headers("login", "x-ratelimit")["x-ratelimit-remaining"], "0");
    equal(JSON.parse(denied.problem("login"))["violated-policies"], ["login"]);
  },

  async memory_is_bounded_and_new_keys_are_denied() {
    const { clock, limiter } = local({ maxMemory: 2 << 20 });
    let denied = 0;
    for (let user = 0; user < 200_000; user += 1) denied += Number(!limiter.takeSync(`user${user}`, "fixed-window:9/1h").allowed);
    const { bytes, maxBytes } = limiter.usage();
    equal([denied > 0, bytes <= maxBytes, maxBytes], [true, true, 2 << 20]);
    // The end of a window is rounded up in the table.
    clock.advance(3_601_000);
    equal((await limiter.take("new", "fixed-window:9/1h")).allowed, true);
  },

  async many_policies_do_not_accumulate() {
    const { limiter } = local();
    for (let burst = 1; burst <= 5000; burst += 1) limiter.takeSync("k", `gcra:5000/1s:burst=${burst}`);
    equal(limiter.takeSync("other", "gcra:5000/1s:burst=1").limit, 1);
  },

  async policies_of_a_call_stay_while_new_ones_replace_the_oldest() {
    const { limiter } = local();
    for (let limit = 1; limit <= 1024; limit += 1) limiter.takeSync("k", `fixed-window:${limit}/1h`, 0);
    const limits = [1, 5001, 2, 5002, 3, 5003];
    const { each } = await limiter.takeAll(limits.map((limit) => ({ key: `key${limit}`, policy: `fixed-window:${limit}/1h` })));
    equal(each.map((it) => it.limit), limits);
  },
};

/** Runs all, and returns the failures. */
export async function run() {
  const failures = [];
  for (const [name, test] of Object.entries(TESTS)) {
    try {
      await test();
    } catch (error) {
      failures.push(`${name}: ${error?.stack ?? error}`);
    }
  }
  return failures;
}
