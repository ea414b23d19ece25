//! The kit that every store passes, and a plain map that keeps all.

use std::{collections::HashMap, ops::ControlFlow};

use proptest::prelude::*;
use sluicegate_conformance::{
    Answer, Invocation, Shape, Subject, check_histories, check_hold_bounds, check_hold_histories,
    check_hold_streams, check_hold_traces, check_keys, check_repeated_holds, check_traces,
};
use sluicegate_core::{Entry, KeyedOperation, ManualClock, Operation, PreparedPolicy, apply};
use sluicegate_memory::{ClockedStore, MemoryStore};

use super::{at, policy};

pub(crate) struct InMemory(pub(crate) MemoryStore);

impl Subject for InMemory {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = question;
        self.0.apply(key, policy, now, operation).map_err(|error| error.to_string())
    }
}

#[test]
fn store_random_histories_of_holds_decide_as_core() {
    let keeping = || InMemory(MemoryStore::new().without_forgetting());
    check_hold_histories(&mut keeping(), 50_000, 2_000, Shape::default());
    for seed in 0..400 {
        let steady = Shape { changes: false, ..Shape::default() };
        check_hold_histories(&mut keeping(), 60_000 + seed, 1, steady);
    }
}

#[test]
fn store_holds_that_arrive_several_times_charge_once() {
    let keeping = || InMemory(MemoryStore::new().without_forgetting());
    let (operations, copies) = check_repeated_holds(&mut keeping(), 0..2_000);
    println!(
        "figure: memory: {operations} operations on holds that arrive {copies} times: equal sums"
    );
    check_hold_bounds(&mut keeping());
}

#[test]
fn store_streams_with_kills_and_duplicates_charge_what_was_used_and_lost() {
    let streams = super::size("SLUICEGATE_STREAMS", 100_000);
    let mut store = InMemory(MemoryStore::new());
    let counts = check_hold_streams(&mut store, usize::try_from(streams).unwrap());
    println!(
        "figure: memory: {streams} streams charge what was used and lost, to the unit: {counts:?}"
    );
}

#[test]
fn store_passes_conformance_traces() {
    check_traces(&mut InMemory(MemoryStore::new().without_forgetting()));
    check_hold_traces(&mut InMemory(MemoryStore::new().without_forgetting()));
    check_keys(&mut InMemory(MemoryStore::new()));
}

#[test]
fn store_random_histories_decide_as_core() {
    let keeping = || InMemory(MemoryStore::new().without_forgetting());
    check_histories(&mut keeping(), 11, 2_000, Shape::default());
    check_histories(&mut keeping(), 9_000, 2_000, Shape { changes: false, ..Shape::default() });
    // States live in slots for two years from a store's first request on: for each history, a store.
    for seed in 0..400 {
        check_histories(&mut keeping(), 20_000 + seed, 1, Shape::default());
        let steady = Shape { changes: false, ..Shape::default() };
        check_histories(&mut keeping(), 30_000 + seed, 1, steady);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// Although the store drops keys, its answers are those of a plain map that keeps all, one by one and in batches.
    #[test]
    fn store_random_operations_decide_as_map(
        steps in prop::collection::vec((0..40_u8, 0..4_000_000_u64, 0..4_u32, 0..6_u8), 1..300),
        batch in 1..50_usize,
    ) {
        let policies = ["gcra:3/1s", "leaky-queue:7/1s", "token-bucket:3/1s:borrow", "fixed-window:3/2s",
            "fixed-window:5/1s:align=clock:count=all", "sliding-log:2/1s:count=all", "gcra:4/1s,gcra:9/10s"].map(policy);
        let (mut plain, mut now) = (HashMap::<u8, Option<Entry>>::new(), 0);
        let store = ClockedStore::new(MemoryStore::new(), ManualClock::new(at(0)));
        let policies = policies.map(PreparedPolicy::from);
        for steps in steps.chunks(batch) {
            now += steps[0].1 / 8;
            let keys: Vec<_> = steps.iter().map(|step| [step.0]).collect();
            let mut operations = Vec::new();
            let mut expected = Vec::new();
            for ((key, _, cost, kind), bytes) in steps.iter().zip(&keys) {
                // Now and then a key comes under another policy.
                let index = usize::from(*key) + usize::from(*kind == 5);
                let policy = &policies[index % policies.len()];
                let operation = match kind {
                    0 | 1 | 5 => Operation::Take(*cost),
                    2 => Operation::Peek(*cost),
                    3 => Operation::Charge(*cost),
                    _ => Operation::Refund(*cost),
                };
                expected.push(apply(policy.policy(), plain.entry(*key).or_default(), at(now), operation));
                operations.push(KeyedOperation { key: bytes, policy, operation });
            }
            let mut found = Vec::new();
            store.clock().set(at(now));
            store.apply_each(&operations, |_, decision| {
                found.push(decision);
                ControlFlow::Continue(())
            });
            prop_assert_eq!(found, expected);
        }
    }
}
