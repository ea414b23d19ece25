//! A multi-key take decides as one policy of all limits does on one key.

use std::time::Duration;

use proptest::prelude::*;
use sluicegate_conformance::{Invocation, OracleSubject, Subject};
use sluicegate_core::{
    Answer, Entry, EntryOperation, Operation, OperationError, Policy, RequestError, Timestamp,
    apply, apply_all,
};

const LIMITS: [&str; 8] = [
    "gcra:3/1s",
    "gcra:7/2s:burst=4:borrow",
    "leaky-queue:2/1s:capacity=5",
    "token-bucket:3/1s:burst=6:refill=interval",
    "fixed-window:5/2s",
    "fixed-window:6/3s:align=clock:count=all",
    "sliding-log:4/2s:count=all",
    "sliding-counter:5/1s",
];

/// Each part of up to three policies, of up to two limits each.
fn policies() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(0..LIMITS.len(), 1..3), 1..4)
}

fn text(limits: &[usize]) -> String {
    limits.iter().map(|&index| LIMITS[index]).collect::<Vec<_>>().join(",")
}

/// Applies `operation` to every entry.
fn apply_to_all(
    policies: &[Policy],
    entries: &mut [Option<Entry>],
    now: Timestamp,
    operation: Operation<'_>,
) -> Result<Answer, OperationError> {
    let parts = policies.iter().zip(entries);
    let mut parts: Vec<_> =
        parts.map(|(policy, entry)| EntryOperation { policy, entry, operation }).collect();
    apply_all(&mut parts, now)
}

proptest! {
    #![proptest_config(super::cases(400))]

    /// The oracle, which is written from the semantics alone, decides on one key under all limits.
    #[test]
    fn multi_key_take_equals_one_policy_of_all_limits(
        policies in policies(),
        steps in prop::collection::vec((0..1_500_000_u64, 1..4_u32), 1..60),
    ) {
        let all: Vec<usize> = policies.concat();
        let whole: Policy = text(&all).parse().unwrap();
        let parts: Vec<Policy> = policies.iter().map(|it| text(it).parse().unwrap()).collect();
        let mut oracle = OracleSubject::default();
        let mut entries = vec![None; parts.len()];
        let mut now = 1_700_000_000_000_000;
        for (span, cost) in steps {
            now += span;
            let now = Timestamp::from_micros(now).unwrap();
            let expected = oracle.apply(Invocation { key: b"all", policy: &whole, now, operation: Operation::Take(cost) }).unwrap();
            let peek = apply_to_all(&parts, &mut entries, now, Operation::Peek(cost)).unwrap();
            let taken = apply_to_all(&parts, &mut entries, now, Operation::Take(cost)).unwrap();
            prop_assert_eq!(peek.allowed(), taken.allowed());
            prop_assert_eq!(taken.each().len(), parts.len());
            let mut decision = taken.decision;
            // The position of the binding limit among the limits of all keys.
            decision.binding += policies[..taken.key].iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!(decision.to_integers(), expected.to_integers());
        }
    }

    /// A multi-key take that is denied charges no key, and a peek changes nothing.
    #[test]
    fn multi_key_take_denied_changes_no_entry(
        policies in prop::collection::vec(0..5_usize, 2..4),
        steps in prop::collection::vec((0..900_000_u64, 1..4_u32), 1..40),
    ) {
        let parts: Vec<Policy> = policies.iter().map(|it| LIMITS[*it].parse().unwrap()).collect();
        let mut entries = vec![None; parts.len()];
        let mut now = 1_700_000_000_000_000;
        for (span, cost) in steps {
            now += span;
            let now = Timestamp::from_micros(now).unwrap();
            let before = entries.clone();
            let peek = apply_to_all(&parts, &mut entries, now, Operation::Peek(cost)).unwrap();
            let taken = apply_to_all(&parts, &mut entries, now, Operation::Take(cost)).unwrap();
            if !taken.allowed() {
                prop_assert_eq!(&peek, &taken);
                prop_assert_eq!(&entries, &before);
                continue;
            }
            for ((policy, mut entry), after) in parts.iter().zip(before).zip(&entries) {
                prop_assert!(apply(policy, &mut entry, now, Operation::Take(cost)).unwrap().allowed());
                prop_assert_eq!(&entry, after);
            }
        }
    }
}

#[test]
fn multi_key_take_of_no_key_is_an_error() {
    let error = Err(OperationError::Request(RequestError::MissingKey));
    assert_eq!(apply_all(&mut [], Timestamp::EPOCH), error);
}

#[test]
fn operations_that_are_no_request_are_an_error_and_change_nothing() {
    let policies: Vec<Policy> = vec!["gcra:3/1s".parse().unwrap(); 2];
    let [hold, other] = [b"a", b"b"].map(|id| {
        let ttl = Some(Duration::from_secs(1));
        Operation::Hold { id, cost: 1, ttl }
    });
    let settle = Operation::Settle { id: b"a", used: None };
    for pair in [
        [Operation::Take(1), Operation::Peek(1)],
        [hold, other],
        [hold, Operation::Take(1)],
        [settle, settle],
        [Operation::Charge(1), Operation::Charge(1)],
        [Operation::Reset, Operation::Reset],
    ] {
        let mut entries = vec![None; 2];
        let mut parts: Vec<_> = policies
            .iter()
            .zip(&mut entries)
            .zip(pair)
            .map(|((policy, entry), operation)| EntryOperation { policy, entry, operation })
            .collect();
        let found = apply_all(&mut parts, Timestamp::EPOCH);
        assert_eq!(found, Err(OperationError::Request(RequestError::Operation)), "{pair:?}");
        assert_eq!(entries, [None, None], "{pair:?}");
    }
}
