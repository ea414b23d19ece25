//! The bytes of a key are those of `docs/state-format.md`: the module reads states of other programs, and writes the bytes
//! that the core encodes.

use redis::Value;
use sluicegate_conformance::{Answer, CoreSubject, Invocation, Shape, Subject, check_histories};
use sluicegate_core::{Entry, Limit, Operation, Policy, Timestamp};
use sluicegate_testing::Engine;

use crate::{
    conformance::OverTheWire,
    on_both,
    server::{serve, with_test_clock},
};

/// The module. Each state is compared with that of the core, and optionally replaced by it.
struct Compared {
    module: OverTheWire,
    core: CoreSubject,
    replaces: bool,
}

impl Subject for Compared {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = question;
        let found = self.module.apply(question);
        let _ = self.core.apply(question);
        let stored = match self.module.0.call_bytes(&[b"GET", key]).unwrap() {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        };
        let expected = self.core.entry(key).filter(|entry| !entry.lifetime(now).is_zero());
        if let Some(expected) = expected {
            let stored = stored.expect("there is state");
            // A log of the fast path may begin with expired events.
            let plain = matches!(expected.policy().limits(), [Limit::SlidingLog(_)]);
            if !plain {
                assert_eq!(stored, expected.encode(), "{now} {operation:?} under {policy}");
            }
            if self.replaces {
                self.module.0.call_bytes(&[b"SET", key, &expected.encode()]).unwrap();
            }
        }
        found
    }
}

fn random_histories_store_what_core_encodes(engine: Engine) {
    let server = with_test_clock(engine);
    for replaces in [false, true] {
        let mut subject = Compared {
            module: OverTheWire(server.raw_client()),
            core: CoreSubject::default(),
            replaces,
        };
        check_histories(
            &mut subject,
            500_000,
            300,
            Shape { steps_back: false, ..Shape::default() },
        );
        server.raw_client().call("FLUSHALL").unwrap();
    }
}

/// A long log, with allowed and denied takes, and steps back of the clock: the core, which keeps no expired event, returns
/// the same decisions.
fn long_log_decisions_equal_those_of_core(engine: Engine) {
    let server = with_test_clock(engine);
    let mut draw = crate::replication::SeededRng(11);
    for text in ["sliding-log:100/1s", "sliding-log:1000/1m", "sliding-log:1/1ms"] {
        let policy: Policy = text.parse().unwrap();
        let (mut module, mut core) = (OverTheWire(server.raw_client()), CoreSubject::default());
        let mut now = 1_700_000_000_000_000;
        for step in 0..4000 {
            let wide = if text.contains("1m") { 60_000 } else { 11_000 };
            now = match draw.below(60) {
                0 => now - draw.below(300_000),
                1 => now + draw.below(1_500_000),
                _ => now + draw.below(wide) * draw.below(3),
            };
            let at = Timestamp::from_micros(now).unwrap();
            let operation = match draw.below(60) {
                0 => Operation::Refund(2),
                1 => Operation::Charge(3),
                2 => Operation::Take(2),
                3 => Operation::Peek(1),
                _ => Operation::Take(1),
            };
            let question = Invocation { key: text.as_bytes(), policy: &policy, now: at, operation };
            let (expected, found) = (core.apply(question), module.apply(question));
            assert_eq!(found, expected, "{text}, step {step}: {at} {operation:?}");
        }
    }
}

/// A key that has lost its time to live gets a new one.
fn key_without_expiry_gets_one(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    for policy in ["gcra:1/1h", "sliding-log:1/1h", "fixed-window:1/1h"] {
        assert_eq!(peer.integers(&format!("SG.TAKE {policy} {policy}"))[0], 1);
        assert_eq!(peer.call(&format!("PERSIST {policy}")), Ok(Value::Int(1)));
        // After a denial, the expiry is only checked sometimes.
        peer.eventually_true(|it| {
            assert_eq!(it.integers(&format!("SG.TAKE {policy} {policy}"))[0], 0);
            it.call(&format!("PTTL {policy}")) != Ok(Value::Int(-1))
        });
        let Ok(Value::Int(left)) = peer.call(&format!("PTTL {policy}")) else { panic!("no PTTL") };
        assert!((3_590_000..=3_600_001).contains(&left), "{policy}: {left}");
    }
}

/// Every key expires, no earlier than it has recovered and hardly later.
fn key_expires_when_it_has_recovered(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    for policy in
        ["gcra:7/1h", "sliding-log:7/1h:keep=3h", "fixed-window:7/day", "gcra:7/1h,gcra:9/1d"]
    {
        peer.integers(&format!("SG.TAKE {policy} {policy} COST 3"));
        let Ok(Value::BulkString(bytes)) = peer.call(&format!("GET {policy}")) else { panic!() };
        let Ok(Value::Int(ends)) = peer.call(&format!("PEXPIRETIME {policy}")) else { panic!() };
        let entry = Entry::decode(&bytes).unwrap();
        let ends = u64::try_from(ends).unwrap() * 1000;
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        assert!(entry.lifetime(at(ends)).is_zero(), "{policy}");
        assert!(!entry.lifetime(at(ends - 1000)).is_zero(), "{policy}");
    }
}

on_both! {
    random_histories_store_what_core_encodes
    long_log_decisions_equal_those_of_core
    key_without_expiry_gets_one
    key_expires_when_it_has_recovered
}
