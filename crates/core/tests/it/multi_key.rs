//! A multi-key take decides as one policy of all limits does on one key.

use proptest::prelude::*;
use sluicegate_conformance::{Invocation, OracleSubject, Subject};
use sluicegate_core::{
    EntryTake, MultiKeyDecision, MultiKeyError, MultiKeyOperation, Operation, Policy, Timestamp,
    apply, apply_multi_key,
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
            let mut takes: Vec<_> = parts
                .iter()
                .zip(&mut entries)
                .map(|(policy, entry)| EntryTake { policy, entry, cost })
                .collect();
            let peek = apply_multi_key(MultiKeyOperation::Peek, &mut takes, now).unwrap();
            let MultiKeyDecision { mut decision, key, each } = apply_multi_key(MultiKeyOperation::Take, &mut takes, now).unwrap();
            prop_assert_eq!(peek.decision.allowed(), decision.allowed());
            prop_assert_eq!(each.len(), parts.len());
            // The position of the binding limit among the limits of all keys.
            decision.binding += policies[..key].iter().map(Vec::len).sum::<usize>();
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
            let mut sides: Vec<_> = parts
                .iter()
                .zip(&mut entries)
                .map(|(policy, entry)| EntryTake { policy, entry, cost })
                .collect();
            let peek = apply_multi_key(MultiKeyOperation::Peek, &mut sides, now).unwrap();
            let taken = apply_multi_key(MultiKeyOperation::Take, &mut sides, now).unwrap();
            if !taken.decision.allowed() {
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
    assert_eq!(
        apply_multi_key(MultiKeyOperation::Take, &mut [], Timestamp::EPOCH),
        Err(MultiKeyError::MissingKey)
    );
    assert_eq!(
        apply_multi_key(MultiKeyOperation::Peek, &mut [], Timestamp::EPOCH),
        Err(MultiKeyError::MissingKey)
    );
}
