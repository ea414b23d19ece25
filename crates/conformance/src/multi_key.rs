//! Random histories of multi-key takes and holds, mixed with operations on single keys.

use std::time::Duration;

use sluicegate_core::{
    EntryTake, MultiKeyDecision, MultiKeyOperation, Operation, Policy, Timestamp, apply_multi_key,
};

use crate::{
    CoreSubject, HoldSubject, Invocation, Shape, Subject, compare,
    history::SeededRng,
    hold_history::{HoldTimes, hold_cost, hold_policy},
};

/// One key of a multi-key take: the key, its policy, and the cost.
pub type MultiKeyTake = (Vec<u8>, Policy, u32);

/// A store under test that supports multi-key takes.
pub trait MultiKeySubject: Subject {
    /// Takes from all of these distinct keys, or from none.
    ///
    /// # Errors
    /// A description of the failure.
    fn take_multi_key(
        &mut self,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String>;
}

/// A store under test that supports multi-key holds.
pub trait MultiKeyHoldSubject: MultiKeySubject + HoldSubject {
    /// Holds units of all of these distinct keys under one id, or of none.
    ///
    /// # Errors
    /// A description of the failure.
    fn hold_multi_key(
        &mut self,
        id: &[u8],
        ttl: Option<Duration>,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String>;
}

impl MultiKeySubject for CoreSubject {
    fn take_multi_key(
        &mut self,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String> {
        self.apply_multi_key(MultiKeyOperation::Take, takes, now)
    }
}

impl MultiKeyHoldSubject for CoreSubject {
    fn hold_multi_key(
        &mut self,
        id: &[u8],
        ttl: Option<Duration>,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String> {
        self.apply_multi_key(MultiKeyOperation::Hold { id, ttl }, takes, now)
    }
}

impl CoreSubject {
    fn apply_multi_key(
        &mut self,
        operation: MultiKeyOperation<'_>,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String> {
        let mut entries: Vec<_> = takes.iter().map(|(key, ..)| self.take_entry(key)).collect();
        let mut parts: Vec<_> = takes
            .iter()
            .zip(&mut entries)
            .map(|((_, policy, cost), entry)| EntryTake { policy, entry, cost: *cost })
            .collect();
        let taken = apply_multi_key(operation, &mut parts, now);
        for ((key, ..), entry) in takes.iter().zip(entries) {
            self.put_entry(key, entry);
        }
        taken.map_err(|error| error.to_string())
    }
}

/// Runs `count` histories of up to five keys from `seed` on, and compares every answer with that of the
/// core.
///
/// # Panics
/// At the first answer that differs.
pub fn check_multi_key(subject: &mut impl MultiKeySubject, seed: u64, count: u64, shape: Shape) {
    let mut core = CoreSubject::default();
    for seed in seed..seed + count {
        let draw = &mut SeededRng::new(seed);
        let keys = 1 + draw.below(5);
        let named = |key: u64| format!("{{{seed}}}:{key}").into_bytes();
        let mut policies: Vec<Policy> = (0..keys).map(|_| draw.policy(shape)).collect();
        let mut now = 1_700_000_040_000_000;
        for step in 0..shape.steps {
            now = draw.time(now, shape);
            let at = Timestamp::saturating_from_micros(now);
            let key = draw.below(keys);
            let index = usize::try_from(key).unwrap_or(0);
            if shape.changes && draw.one_in(12) {
                policies[index] = draw.policy(shape);
            }
            if draw.one_in(3) {
                let operation = draw.operation(&policies[index], shape);
                let (key, policy) = (&named(key)[..], &policies[index]);
                let invocation = Invocation { key, policy, now: at, operation };
                let (expected, found) = (core.apply(invocation), subject.apply(invocation));
                if let Err(difference) = compare(&expected, &found) {
                    panic!("history {seed}, step {step}, {operation:?}: {difference}");
                }
                continue;
            }
            // Distinct keys in order, from a random one.
            let mut order: Vec<_> = (0..keys).collect();
            order.rotate_left(index);
            order.truncate(1 + usize::try_from(draw.below(keys)).unwrap_or(0));
            let takes = order.into_iter().map(|key| {
                let policy = &policies[usize::try_from(key).unwrap_or(0)];
                let cost = match draw.operation(policy, shape) {
                    Operation::Take(cost) => cost,
                    _ => 1,
                };
                (named(key), policy.clone(), cost)
            });
            let takes: Vec<MultiKeyTake> = takes.collect();
            let expected = core.take_multi_key(&takes, at);
            let found = subject.take_multi_key(&takes, at);
            assert_eq!(found, expected, "history {seed}, step {step}, at {at}: {takes:?}");
        }
    }
}

/// As [`check_multi_key`], with holds of one and of several keys.
///
/// # Panics
/// At the first answer that differs.
pub fn check_multi_key_holds(
    subject: &mut impl MultiKeyHoldSubject,
    seed: u64,
    count: u64,
    shape: Shape,
) {
    let mut core = CoreSubject::default();
    for seed in seed..seed + count {
        let draw = &mut SeededRng::new(seed);
        let keys = usize::try_from(1 + draw.below(4)).unwrap_or(1);
        let named = |key: usize| format!("{{holds:{seed}}}:{key}").into_bytes();
        let mut times = HoldTimes::new(draw);
        let mut policies: Vec<Policy> = (0..keys).map(|_| hold_policy(draw, shape)).collect();
        let mut log = Vec::new();
        for _ in 0..shape.steps {
            let now = times.next(draw, shape);
            let first = usize::try_from(draw.below(keys as u64)).unwrap_or(0);
            if shape.changes && draw.one_in(12) {
                policies[first] = hold_policy(draw, shape);
            }
            if draw.one_in(2) {
                let operation = times.operation(draw, &policies[first], shape);
                let (key, policy) = (&named(first)[..], &policies[first]);
                log.push(format!("{now} {operation:?} of {first} under {policy}"));
                let expected = operation.apply_to(&mut core, key, policy, now);
                let found = operation.apply_to(subject, key, policy, now);
                compare(&expected, &found)
                    .unwrap_or_else(|it| panic!("history {seed}: {it}, after\n{}", log.join("\n")));
                continue;
            }
            let mut order: Vec<_> = (0..keys).collect();
            order.rotate_left(first);
            order.truncate(1 + usize::try_from(draw.below(keys as u64)).unwrap_or(0));
            let takes = order.into_iter().map(|key| {
                let policy = &policies[key];
                (named(key), policy.clone(), hold_cost(draw, policy))
            });
            let takes: Vec<MultiKeyTake> = takes.collect();
            let (id, ttl) = (times.id(draw), times.ttl(draw));
            let (expected, found) = if draw.one_in(4) {
                log.push(format!("{now} take of {takes:?}"));
                (core.take_multi_key(&takes, now), subject.take_multi_key(&takes, now))
            } else {
                log.push(format!("{now} hold {ttl:?} of {takes:?}"));
                (
                    core.hold_multi_key(id, ttl, &takes, now),
                    subject.hold_multi_key(id, ttl, &takes, now),
                )
            };
            let same = found == expected || (found.is_err() && expected.is_err());
            assert!(same, "history {seed}: {found:?}, expected {expected:?}, {}", log.join("\n"));
        }
    }
}
