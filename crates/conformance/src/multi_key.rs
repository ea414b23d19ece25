//! Random histories of multi-key takes and holds, mixed with operations on single keys.

use sluicegate_core::{Answer, EntryOperation, Operation, Policy, Timestamp, apply_all};

use crate::{
    CoreSubject, Invocation, Shape, Subject, compare,
    history::SeededRng,
    hold_history::{HoldTimes, hold_cost, hold_policy},
};

/// A store under test that decides on several keys at once.
pub trait MultiKeySubject: Subject {
    /// Applies operations to distinct keys, to all of them or to none: all are takes, or holds with one id and ttl, and
    /// all have one time.
    ///
    /// # Errors
    /// A description of the failure.
    fn apply_all(&mut self, invocations: &[Invocation<'_>]) -> Result<Answer, String>;
}

impl MultiKeySubject for CoreSubject {
    fn apply_all(&mut self, invocations: &[Invocation<'_>]) -> Result<Answer, String> {
        let now = invocations.first().map_or(Timestamp::EPOCH, |it| it.now);
        let mut entries: Vec<_> = invocations.iter().map(|it| self.take_entry(it.key)).collect();
        let mut parts: Vec<_> = invocations
            .iter()
            .zip(&mut entries)
            .map(|(&Invocation { policy, operation, .. }, entry)| EntryOperation {
                policy,
                entry,
                operation,
            })
            .collect();
        let answer = apply_all(&mut parts, now);
        for (it, entry) in invocations.iter().zip(entries) {
            self.put_entry(it.key, entry);
        }
        answer.map_err(|error| error.to_string())
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
        let names: Vec<_> = (0..keys).map(|key| format!("{{{seed}}}:{key}").into_bytes()).collect();
        let mut policies: Vec<Policy> = (0..keys).map(|_| draw.policy(shape)).collect();
        let mut now = 1_700_000_040_000_000;
        for step in 0..shape.steps {
            now = draw.time(now, shape);
            let at = Timestamp::saturating_from_micros(now);
            let index = usize::try_from(draw.below(keys)).unwrap_or(0);
            if shape.changes && draw.one_in(12) {
                policies[index] = draw.policy(shape);
            }
            if draw.one_in(3) {
                let operation = draw.operation(&policies[index], shape);
                let (key, policy) = (&names[index], &policies[index]);
                let invocation = Invocation { key, policy, now: at, operation };
                let (expected, found) = (core.apply(invocation), subject.apply(invocation));
                if let Err(difference) = compare(&expected, &found) {
                    panic!("history {seed}, step {step}, {operation:?}: {difference}");
                }
                continue;
            }
            // Distinct keys in order, from a random one.
            let mut order: Vec<_> = (0..names.len()).collect();
            order.rotate_left(index);
            order.truncate(1 + usize::try_from(draw.below(keys)).unwrap_or(0));
            let takes = order.into_iter().map(|index| {
                let (key, policy) = (&names[index], &policies[index]);
                let cost = match draw.operation(policy, shape) {
                    Operation::Take(cost) => cost,
                    _ => 1,
                };
                Invocation { key, policy, now: at, operation: Operation::Take(cost) }
            });
            let takes: Vec<_> = takes.collect();
            let (expected, found) = (core.apply_all(&takes), subject.apply_all(&takes));
            assert_eq!(found, expected, "history {seed}, step {step}, at {at}: {takes:?}");
        }
    }
}

/// As [`check_multi_key`], with holds of one and of several keys.
///
/// # Panics
/// At the first answer that differs.
pub fn check_multi_key_holds(
    subject: &mut impl MultiKeySubject,
    seed: u64,
    count: u64,
    shape: Shape,
) {
    let mut core = CoreSubject::default();
    for seed in seed..seed + count {
        let draw = &mut SeededRng::new(seed);
        let keys = usize::try_from(1 + draw.below(4)).unwrap_or(1);
        let names: Vec<_> =
            (0..keys).map(|key| format!("{{holds:{seed}}}:{key}").into_bytes()).collect();
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
                let (key, policy) = (&names[first], &policies[first]);
                log.push(format!("{now} {operation:?} of {first} under {policy}"));
                let invocation = Invocation { key, policy, now, operation };
                compare(&core.apply(invocation), &subject.apply(invocation))
                    .unwrap_or_else(|it| panic!("history {seed}: {it}, after\n{}", log.join("\n")));
                continue;
            }
            let mut order: Vec<_> = (0..keys).collect();
            order.rotate_left(first);
            order.truncate(1 + usize::try_from(draw.below(keys as u64)).unwrap_or(0));
            let costs: Vec<_> =
                order.iter().map(|&index| hold_cost(draw, &policies[index])).collect();
            let (id, ttl) = (times.id(draw), times.ttl(draw));
            let operation = match draw.one_in(4) {
                true => Operation::Take(0),
                false => Operation::Hold { id, cost: 0, ttl },
            };
            let invocations = order.iter().zip(costs).map(|(&index, cost)| Invocation {
                key: &names[index],
                policy: &policies[index],
                now,
                operation: operation.with_cost(cost),
            });
            let invocations: Vec<_> = invocations.collect();
            log.push(format!("{invocations:?}"));
            let expected = core.apply_all(&invocations);
            let found = subject.apply_all(&invocations);
            let same = found == expected || (found.is_err() && expected.is_err());
            assert!(same, "history {seed}: {found:?}, expected {expected:?}, {}", log.join("\n"));
        }
    }
}
