//! Every key that the scripts store expires by itself, and not before it has recovered.

use std::time::Duration;

use redis::Connection;
use sluicegate_core::{Decision, Entry, Operation, Policy, Timestamp};
use sluicegate_redis::script::{Plan, Reply};
use sluicegate_testing::{Engine, Server};

use crate::store::{Store, parse_reply, read};

const ENGINES: [Engine; 3] = [Engine::Redis70, Engine::Valkey91, Engine::Redis62];

fn apply(connection: &mut Connection, key: &str, policy: &str, operation: Operation) -> Decision {
    let plan = Plan::new(&policy.parse().unwrap());
    let arguments = plan.arguments(operation, server_time(connection), None, &[]).unwrap();
    let reply = Store::run(connection, &plan, key.as_bytes(), &arguments).unwrap();
    let reply = parse_reply(&plan, operation, &reply).unwrap();
    let Reply::Decision(decision) = reply else { panic!("no decision") };
    decision
}

fn server_time(connection: &mut Connection) -> Timestamp {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    Timestamp::from_micros(seconds * 1_000_000 + micros).unwrap()
}

/// Milliseconds since the epoch at which the key goes.
fn expiry(connection: &mut Connection, key: &str) -> i64 {
    let left: i64 = redis::cmd("PTTL").arg(key).query(connection).unwrap();
    assert!(left > 0, "{key} has no time to live: {left}");
    i64::try_from(server_time(connection).as_micros() / 1000).unwrap() + left
}

fn micros(span: Duration) -> u64 {
    span.as_micros().try_into().unwrap()
}

#[test]
fn script_key_expires_when_it_has_recovered() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        for policy in [
            "gcra:30/60s:burst=16",
            "leaky-queue:7/60s",
            "token-bucket:5/1m:borrow",
            "token-bucket:5/1m:refill=interval",
            "fixed-window:9/90s",
            "fixed-window:9/week:tz=Asia/Shanghai",
            "sliding-log:9/1m",
            "sliding-log:9/1m:keep=3h",
            "sliding-counter:9/1m:count=all",
            "gcra:30/60s,sliding-log:1000/1d",
        ] {
            for operation in [Operation::Take(2), Operation::Charge(40), Operation::Refund(1)] {
                let before = server_time(connection);
                let decision = apply(connection, policy, policy, operation);
                let stored: Vec<u8> = redis::cmd("GET").arg(policy).query(connection).unwrap();
                let after = server_time(connection);
                let entry = Entry::decode(&stored).unwrap();
                // It ends no sooner than the reply says, and no later than the core would keep it by more than
                // rounding and the time of the calls.
                let ends = u64::try_from(expiry(connection, policy)).unwrap() * 1000;
                let least = before.as_micros() + micros(decision.reset_after);
                let most = after.as_micros() + micros(entry.lifetime(before)) + 5_000;
                let took = server_time(connection).as_micros() - after.as_micros();
                assert!(ends + 1_000 >= least, "{engine:?} {policy} {operation:?}");
                assert!(ends <= most + took, "{engine:?} {policy}: {} late", ends - most);
            }
        }
    }
}

/// The time at which a key expires is that of its state in whole milliseconds, rounded up: a millisecond less would forget up to
/// five units here.
#[test]
fn script_key_expires_in_the_millisecond_after_its_state() {
    for engine in [Engine::Redis70, Engine::Valkey91] {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        for policy in ["gcra:1000/60s", "gcra:1000/60s:borrow", "fixed-window:9/90s"] {
            for number in 0..20 {
                let key = format!("{policy}{number}");
                let _ = apply(connection, &key, policy, Operation::Take(3));
                let stored: Vec<u8> = redis::cmd("GET").arg(&key).query(connection).unwrap();
                let entry = Entry::decode(&stored).unwrap();
                let recovers = micros(entry.lifetime(Timestamp::EPOCH));
                let ends: u64 = redis::cmd("PEXPIRETIME").arg(&key).query(connection).unwrap();
                assert_eq!(ends, recovers.div_ceil(1000), "{engine:?} {key}");
            }
        }
    }
}

#[test]
fn script_test_key_lives_for_an_hour() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        for policy in ["gcra:1000/1s", "sliding-log:1000/1ms", "gcra:1/1s,gcra:2/1s", "gcra:1/3h"] {
            let policy: Policy = policy.parse().unwrap();
            let plan = Plan::new(&policy);
            let arguments = plan
                .arguments(Operation::Take(1), Timestamp::EPOCH, Some(Timestamp::EPOCH), &[])
                .unwrap();
            let key = format!("sg:test:{policy}");
            let _ = Store::run(connection, &plan, key.as_bytes(), &arguments).unwrap();
            let left: i64 = redis::cmd("PTTL").arg(&key).query(connection).unwrap();
            let least = if policy.to_string().ends_with("3h") { 10_790_000 } else { 3_590_000 };
            assert!(left > least && left <= least + 10_000, "{key}: {left}");

            // Other keys may not set the time.
            let error = Store::run(connection, &plan, b"sg:tes:x", &arguments).unwrap_err();
            let expected =
                "ERR invalid time argument: expected it only with keys that begin with `sg:test:`";
            assert_eq!(error, expected);
        }
    }
}

/// A hold under only `concurrency` limits leaves the policy of the key, whose usage recovers sooner than the hold ends.
#[test]
fn script_key_with_usage_outlives_its_first_hold() {
    const TTL: Duration = Duration::from_secs(30);
    let plan = Plan::new(&"concurrency:1/30s".parse().unwrap());
    let hold = Operation::Hold { id: b"id", cost: 1, ttl: Some(TTL) };
    for engine in ENGINES {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        for policy in ["gcra:1/9s", "fixed-window:9/9s,sliding-log:9/5s", "sliding-counter:9/2s"] {
            let _ = apply(connection, policy, policy, Operation::Take(1));
            let now = server_time(connection);
            let arguments = plan.arguments(hold, now, None, &[]).unwrap();
            let reply = Store::run(connection, &plan, policy.as_bytes(), &arguments).unwrap();
            let Ok(Reply::Decision(decision)) = read(&reply) else { panic!("{reply:?}") };
            assert!(decision.allowed());
            let ends = u64::try_from(expiry(connection, policy)).unwrap() * 1000;
            let least = now.as_micros() + micros(TTL);
            assert!(ends + 1_000 >= least, "{engine:?} {policy}: {} us early", least - ends);
        }
    }
}

/// A hold changes no limit. Therefore a limit can have times later than the clock, after that stepped back.
#[test]
fn script_key_with_later_times_lives_as_long_as_its_entry() {
    const HOUR: Duration = Duration::from_hours(1);
    // A Tuesday.
    let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
    let later = now + 2 * HOUR;
    let (id, ttl) = (b"id", Some(HOUR));
    for engine in ENGINES {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        for policy in [
            "fixed-window:9/5h",
            "fixed-window:9/5h:align=clock",
            "fixed-window:9/week:tz=Asia/Shanghai",
            "token-bucket:9/3h:refill=interval",
            "sliding-log:9/4h",
            "sliding-log:9/4h:keep=30h",
            "sliding-counter:9/5h",
            "gcra:9/5h",
            "fixed-window:9/5h,sliding-counter:9/2h",
        ] {
            let plan = Plan::new(&policy.parse().unwrap());
            let key = format!("sg:test:{policy}");
            let take = plan.arguments(Operation::Take(3), later, Some(later), &[]).unwrap();
            let _ = Store::run(connection, &plan, key.as_bytes(), &take).unwrap();
            for operation in [
                Operation::Hold { id, cost: 1, ttl },
                Operation::Renew { id, ttl },
                Operation::Settle { id, used: Some(0) },
            ] {
                let arguments = plan.arguments(operation, now, Some(now), &[]).unwrap();
                let _ = Store::run(connection, &plan, key.as_bytes(), &arguments).unwrap();
                let stored: Vec<u8> = redis::cmd("GET").arg(&key).query(connection).unwrap();
                let left: u128 = redis::cmd("PTTL").arg(&key).query(connection).unwrap();
                let lifetime = Entry::decode(&stored).unwrap().lifetime(now).as_millis();
                assert!(
                    left <= lifetime + 1 && left + 60_000 > lifetime,
                    "{engine:?} {key} {operation:?}: {left} ms, not {lifetime}"
                );
            }
        }
    }
}

#[test]
fn script_key_without_expiry_gets_one() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        for policy in
            ["gcra:1/1h", "gcra:1/1h,gcra:2/1h", "sliding-log:2/1h", "leaky-queue:1/1h:burst=9"]
        {
            let _ = apply(connection, policy, policy, Operation::Take(1));
            // A denied take on the fast path checks it occasionally, for speed, and all others at once.
            for (operation, tries) in
                [(Operation::Take(10), 2_000), (Operation::Charge(1), 1), (Operation::Refund(1), 1)]
            {
                let lost: bool = redis::cmd("PERSIST").arg(policy).query(connection).unwrap();
                assert!(lost);
                let mut healed = false;
                for _ in 0..tries {
                    let _ = apply(connection, policy, policy, operation);
                    let left: i64 = redis::cmd("PTTL").arg(policy).query(connection).unwrap();
                    healed = left > 0;
                    if healed {
                        break;
                    }
                }
                assert!(healed, "{engine:?} {policy} {operation:?}");
                let _ = expiry(connection, policy);
            }
        }
    }
}

#[test]
fn script_operation_without_effect_writes_nothing() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        let changes = |connection: &mut Connection| -> u64 {
            let text: String = redis::cmd("INFO").arg("persistence").query(connection).unwrap();
            let mut lines = text.lines();
            let line = lines.find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
            line.unwrap().parse().unwrap()
        };
        for policy in ["gcra:2/1h", "fixed-window:2/1h,gcra:2/1h", "sliding-log:2/1h"] {
            let _ = apply(connection, policy, policy, Operation::Take(2));
            let before = changes(connection);
            for operation in [
                Operation::Take(1),
                Operation::Take(3),
                Operation::Take(0),
                Operation::Peek(1),
                Operation::Charge(0),
                Operation::Refund(0),
            ] {
                let _ = apply(connection, policy, policy, operation);
                let _ = apply(connection, "unused", policy, Operation::Peek(1));
                let _ = apply(connection, "unused", policy, Operation::Refund(1));
                let _ = apply(connection, "unused", policy, Operation::Take(9));
            }
            assert_eq!(changes(connection), before, "{engine:?} {policy}");
            let kept: bool = redis::cmd("EXISTS").arg("unused").query(connection).unwrap();
            assert!(!kept);
            let _ = apply(connection, policy, policy, Operation::Reset);
            let kept: bool = redis::cmd("EXISTS").arg(policy).query(connection).unwrap();
            assert!(!kept, "{engine:?} {policy}");
        }
    }
}
