use std::{collections::HashMap as Plain, time::Duration};

use proptest::prelude::*;
use sluicegate_core::apply;

use super::*;
use crate::trace::TraceReader;

fn event<'a>(time: u64, key: &'a [u8], policy: &'a str, kind: Kind) -> Event<'a> {
    let time = Timestamp::from_micros(time).unwrap();
    let (cost, id, ttl) = (Some(1), b"", None);
    Event { line: 7, time, key, cost, policy: policy.as_bytes(), kind, id, ttl }
}

#[test]
fn simulation_policy_of_event_applies_to_it_only() {
    let mut simulation = Simulation::new(Some("gcra:1/1s".parse().unwrap()));
    let mut limit = |policy| simulation.decide(&event(0, b"k", policy, Kind::Peek)).unwrap().limit;
    assert_eq!(limit(""), 1);
    assert_eq!(limit("gcra:5/1s"), 5);
    assert_eq!(limit("gcra:6/1s"), 6);
    assert_eq!(limit("gcra:5/1s"), 5);
    assert_eq!(limit(""), 1);
}

#[test]
fn simulation_invalid_policy_error_has_line() {
    let actual = |default, policy| {
        let mut simulation = Simulation::new(default);
        simulation.decide(&event(0, b"k", policy, Kind::Take)).unwrap_err().to_string()
    };
    assert_eq!(actual(None, ""), "line 7: missing policy: use --policy, or a `policy` column");
    let invalid = actual(None, "gcra:1/0s");
    assert!(invalid.starts_with("line 7: invalid policy `gcra:1/0s`: "), "{invalid}");
}

#[test]
fn simulation_unsupported_operation_error_has_line_and_keeps_the_key() {
    let mut simulation = Simulation::new(Some("concurrency:2/30s".parse().unwrap()));
    let hold = |id, ttl| Event { id, ttl, ..event(0, b"k", "", Kind::Hold) };
    let actual = |result: Result<Decision, TraceError>| result.unwrap_err().to_string();
    assert_eq!(simulation.decide(&hold(b"a", None)).unwrap().remaining, 1);
    for kind in [Kind::Take, Kind::Charge, Kind::Refund] {
        assert_eq!(
            actual(simulation.decide(&event(0, b"k", "", kind))),
            format!(
                "line 7: invalid op `{kind}` under a policy with `concurrency`: expected hold, settle, renew, peek or reset"
            )
        );
    }
    assert_eq!(
        actual(simulation.decide(&hold(b"", None))),
        "line 7: invalid id of 0 bytes: expected 1 to 64 bytes"
    );
    assert_eq!(
        actual(simulation.decide(&hold(&[b'i'; 65], None))),
        "line 7: invalid id of 65 bytes: expected 1 to 64 bytes"
    );
    for ttl in [0, 999, 30_000_001] {
        assert_eq!(
            actual(simulation.decide(&hold(b"b", Some(Duration::from_micros(ttl))))),
            format!("line 7: invalid ttl `{ttl}`: expected 1000 to 30000000 microseconds")
        );
    }
    let without = Event { policy: b"gcra:1/1s", ..hold(b"b", None) };
    assert_eq!(
        actual(simulation.decide(&without)),
        "line 7: missing ttl: expected 1000 to 86400000000 microseconds; only a policy with `concurrency` has a default"
    );
    let queue = Event { policy: b"leaky-queue:1/1s:capacity=2", ..hold(b"b", None) };
    assert_eq!(
        actual(simulation.decide(&queue)),
        "line 7: invalid policy for a hold: expected one without `leaky-queue`"
    );
    assert_eq!(simulation.decide(&hold(b"b", None)).unwrap().remaining, 0);
}

/// A bucket with an open hold is not kept as a TAT alone; once the hold has ended, it is again.
#[test]
fn simulation_hold_of_a_bucket_lasts_until_it_is_settled() {
    let mut simulation = Simulation::new(Some("token-bucket:10/10s".parse().unwrap()));
    let mut decide = |seconds: u64, kind, cost, ttl: Option<u64>| {
        let ttl = ttl.map(Duration::from_secs);
        let event =
            Event { id: b"stream", cost, ttl, ..event(seconds * 1_000_000, b"k", "", kind) };
        simulation.decide(&event).unwrap().to_integers()
    };
    // allowed, limit, remaining, retry_after, reset_after, delay, binding.
    assert_eq!(decide(0, Kind::Hold, Some(6), Some(5)), [1, 10, 4, 0, 11_000_000, 0, 0]);
    assert_eq!(decide(1, Kind::Take, Some(4), None), [1, 10, 0, 0, 10_000_000, 0, 0]);
    // It passes when 1 of the 4 units has come back. At 5 s, all have, and the hold would be charged until 11 s.
    assert_eq!(decide(1, Kind::Take, Some(1), None), [0, 10, 0, 1_000_000, 10_000_000, 0, 0]);
    assert_eq!(decide(2, Kind::Settle, Some(2), None), [1, 10, 5, 0, 5_000_000, 0, 0]);
    assert_eq!(decide(2, Kind::Settle, None, None), [0, 10, 5, -1, 5_000_000, 0, 0]);
    assert_eq!(decide(7, Kind::Take, Some(0), None), [1, 10, 10, 0, 0, 0, 0]);
}

#[test]
fn simulation_reset_answers_as_unused_key() {
    let mut simulation = Simulation::new(Some("gcra:2/1s".parse().unwrap()));
    let _ = simulation.decide(&event(0, b"k", "", Kind::Take)).unwrap();
    let reset = simulation.decide(&event(0, b"k", "", Kind::Reset)).unwrap();
    assert_eq!(reset.to_integers(), [1, 2, 2, 0, 0, 0, 0]);
    assert_eq!(simulation.keys(), 0);
}

#[test]
fn simulation_peek_stores_no_key() {
    let mut simulation = Simulation::new(Some("gcra:2/1s".parse().unwrap()));
    let _ = simulation.decide(&event(0, b"k", "", Kind::Peek)).unwrap();
    let free = Event { cost: Some(0), ..event(0, b"k", "", Kind::Take) };
    let _ = simulation.decide(&free).unwrap();
    assert_eq!(simulation.keys(), 0);
}

#[test]
fn simulation_slot_fits_in_cache_line() {
    assert_eq!(size_of::<Slot>(), 64);
}

#[test]
fn memory_follows_the_keys_in_use() {
    let mut simulation = Simulation::new(Some("gcra:1/1ms".parse().unwrap()));
    for micros in 0..1_000_000_u64 {
        let key = micros.to_le_bytes();
        let _ = simulation.decide(&event(1000 * micros, &key, "", Kind::Take)).unwrap();
        // A million keys come in a second; each is in use for a millisecond.
        assert!(simulation.keys() <= MIN_SWEEP, "{} keys", simulation.keys());
    }
    assert!(simulation.keys.capacity() < 4 * MIN_SWEEP);
}

/// Traces of few keys under few policies, with every operation.
fn traces() -> impl Strategy<Value = String> {
    let policies = prop::sample::select(vec![
        "",
        "gcra:3/10ms:burst=4",
        "token-bucket:3/10ms:burst=4",
        "leaky-queue:7/20ms:capacity=5",
        "gcra:2/5ms:borrow",
        "sliding-log:3/10ms",
        "fixed-window:3/10ms,gcra:3/10ms",
    ]);
    let kinds = prop::sample::select(vec!["", "", "", "peek", "charge", "refund", "reset"]);
    let row = (0..4_000_u64, 0..4_u8, 0..6_u32, policies, kinds);
    proptest::collection::vec(row, 0..300).prop_map(|rows| {
        let (mut trace, mut time) = ("t_us,key,cost,policy,op\n".to_owned(), 1 << 50);
        for (step, key, cost, policy, kind) in rows {
            time += step;
            trace += &format!("{time},key-{key},{cost},\"{policy}\",{kind}\n");
        }
        trace
    })
}

/// Traces of few keys and ids, with rates, `concurrency` and both.
fn traces_of_holds() -> impl Strategy<Value = String> {
    let rate = prop::sample::select(vec![
        "gcra:3/10ms:burst=4",
        "sliding-log:5/10ms",
        "fixed-window:4/10ms:count=all",
        "sliding-counter:4/10ms,concurrency:3/20ms",
        "token-bucket:3/10ms:borrow",
        "token-bucket:2/5ms:burst=6:refill=interval",
    ]);
    let operations = prop_oneof![
        4 => (rate.clone(), prop::sample::select(vec!["hold", "settle", "renew"])),
        4 => (Just("concurrency:5/20ms"), prop::sample::select(vec!["hold", "settle", "renew", "peek"])),
        1 => (rate, Just("peek")),
        1 => (Just("gcra:3/10ms:burst=4"), prop::sample::select(vec!["take", "charge", "refund"])),
        1 => (Just("sliding-log:5/10ms"), prop::sample::select(vec!["take", "reset"])),
    ];
    let row =
        (0..4_000_u64, 0..2_u8, 0..6_u32, operations, 0..4_u8, 1_000..20_000_u64, any::<bool>());
    proptest::collection::vec(row, 0..200).prop_map(|rows| {
        let (mut trace, mut time) = ("t_us,key,cost,policy,op,id,ttl_us\n".to_owned(), 1 << 50);
        for (step, key, cost, (policy, kind), id, ttl, given) in rows {
            time += step;
            let cost = if kind == "renew" || kind == "settle" && given {
                String::new()
            } else {
                cost.to_string()
            };
            let (has_id, has_ttl) = match kind {
                "hold" | "renew" => (true, !(given && policy.contains("concurrency"))),
                "settle" => (true, false),
                _ => (false, false),
            };
            let id = if has_id { format!("id-{id}") } else { String::new() };
            let ttl = if has_ttl { ttl.to_string() } else { String::new() };
            trace += &format!("{time},key-{key},{cost},\"{policy}\",{kind},{id},{ttl}\n");
        }
        trace
    })
}

/// Checks that every event of `trace` is decided as the core does, one by one and in batches.
fn check_decisions(trace: &str) -> Result<(), TestCaseError> {
    let default: Policy = "gcra:3/10ms:burst=4".parse().unwrap();
    let mut alone = Simulation::new(Some(default.clone()));
    let mut in_batches = Simulation::new(Some(default.clone()));
    let mut plain: Plain<Vec<u8>, Option<Entry>> = Plain::new();
    let mut reader = TraceReader::new(trace.as_bytes()).unwrap();
    loop {
        let batch = reader.next_batch().unwrap();
        if batch.is_empty() {
            return Ok(());
        }
        let mut decided = Vec::new();
        let all = in_batches.decide_batch(batch, |_, decision| {
            decided.push(*decision);
            Ok::<_, TraceError>(())
        });
        all.unwrap();
        for (event, decision) in batch.events().zip(decided) {
            let text = std::str::from_utf8(event.policy).unwrap();
            let policy = if text.is_empty() { default.clone() } else { text.parse().unwrap() };
            let entry = plain.entry(event.key.to_vec()).or_default();
            let operation = event.operation(&policy);
            let expected = apply(&policy, entry, event.time, operation).unwrap();
            prop_assert_eq!(alone.decide(&event).unwrap(), expected);
            prop_assert_eq!(decision, expected);
        }
    }
}

proptest! {
    #[test]
    fn simulation_any_event_is_decided_as_by_the_core(trace in traces()) {
        check_decisions(&trace)?;
    }

    #[test]
    fn simulation_any_hold_is_decided_as_by_the_core(trace in traces_of_holds()) {
        check_decisions(&trace)?;
    }
}
