use std::collections::HashMap as Plain;

use proptest::prelude::*;

use super::*;
use crate::trace::TraceReader;

fn event<'a>(time: u64, key: &'a [u8], policy: &'a str, kind: Kind) -> Event<'a> {
    let time = Timestamp::from_micros(time).unwrap();
    Event { line: 7, time, key, cost: 1, policy: policy.as_bytes(), kind }
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
    let told = |default, policy| {
        let mut simulation = Simulation::new(default);
        simulation.decide(&event(0, b"k", policy, Kind::Take)).unwrap_err().to_string()
    };
    assert_eq!(told(None, ""), "line 7: missing policy: use --policy, or a `policy` column");
    let invalid = told(None, "gcra:1/0s");
    assert!(invalid.starts_with("line 7: invalid policy `gcra:1/0s`: "), "{invalid}");
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
    let free = Event { cost: 0, ..event(0, b"k", "", Kind::Take) };
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

proptest! {
    #[test]
    fn every_event_is_decided_as_the_core_would(trace in traces()) {
        let default: Policy = "gcra:3/10ms:burst=4".parse().unwrap();
        let mut alone = Simulation::new(Some(default.clone()));
        let mut in_batches = Simulation::new(Some(default.clone()));
        let mut plain: Plain<Vec<u8>, Option<Entry>> = Plain::new();
        let mut reader = TraceReader::new(trace.as_bytes()).unwrap();
        loop {
            let batch = reader.next_batch().unwrap();
            if batch.is_empty() {
                break;
            }
            let mut decided = Vec::new();
            in_batches.decide_batch(batch, |_, decision| {
                decided.push(*decision);
                Ok::<_, TraceError>(())
            }).unwrap();
            for (event, decision) in batch.events().zip(decided) {
                let text = std::str::from_utf8(event.policy).unwrap();
                let policy = if text.is_empty() { default.clone() } else { text.parse().unwrap() };
                let entry = plain.entry(event.key.to_vec()).or_default();
                let expected = apply(&policy, entry, event.time, event.operation()).unwrap();
                prop_assert_eq!(alone.decide(&event).unwrap(), expected);
                prop_assert_eq!(decision, expected);
            }
        }
    }
}
