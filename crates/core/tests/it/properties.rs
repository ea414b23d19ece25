//! Properties of every algorithm, alone and together.

use std::time::Duration;

use proptest::prelude::*;
use sluicegate_conformance::{CoreSubject, History, Invocation, Shape, Subject};
use sluicegate_core::{
    Align, Entry, GcraName, Limit, Operation, Policy, Retry, Timestamp, Window, apply,
};

use super::{CHANGING, KEY, STEADY, apply_step, apply_to_copy, histories};

const MICRO: Duration = Duration::from_micros(1);

fn retry_is_enough_and_tight(history: &History) -> Result<(), TestCaseError> {
    let mut core = CoreSubject::default();
    for step in &history.0 {
        let Some(decision) = apply_step(&mut core, step) else { continue };
        let again = match step.operation {
            Operation::Take(cost) | Operation::Peek(cost) => Operation::Peek(cost),
            reserve @ Operation::Reserve { .. } => reserve,
            _ => continue,
        };
        // A peek under a new policy answers for now only: its migration is not stored.
        let stored = core.entry(KEY).is_none_or(|entry| entry.policy().decides_like(&step.policy));
        let Some(Retry::After(wait)) = decision.retry().filter(|_| stored) else { continue };
        let then = step.now + wait;
        if then == Timestamp::MAX {
            continue;
        }
        let before = step.now + (wait - MICRO);
        prop_assert!(
            apply_to_copy(&core, step, then, again).allowed(),
            "{step}: {wait:?} is too short"
        );
        prop_assert!(
            !apply_to_copy(&core, step, before, again).allowed(),
            "{step}: {wait:?} is long"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(super::cases(1_000))]

    #[test]
    fn retry_after_is_enough_and_a_microsecond_less_is_not(history in histories(STEADY)) {
        retry_is_enough_and_tight(&history)?;
    }

    #[test]
    fn retry_after_after_policy_change_is_enough_and_tight(history in histories(CHANGING)) {
        retry_is_enough_and_tight(&history)?;
    }

    #[test]
    fn recovered_is_the_same_as_unused(history in histories(CHANGING), cost in 0..9_u32) {
        let mut core = CoreSubject::default();
        for step in &history.0 {
            let Some(decision) = apply_step(&mut core, step) else { continue };
            // Only an operation that stores writes the entry under the new policy.
            if !core.entry(KEY).is_none_or(|entry| entry.policy().decides_like(&step.policy)) {
                continue;
            }
            let later = step.now + decision.reset_after;
            let mut unused = None;
            for operation in [Operation::Peek(cost), Operation::Take(cost), Operation::Charge(cost)] {
                let expected = apply(&step.policy, &mut unused, later, operation).unwrap();
                unused = None;
                prop_assert_eq!(apply_to_copy(&core, step, later, operation), expected, "{}", step);
            }
        }
    }

    #[test]
    fn entry_dropped_after_its_lifetime_changes_no_decision(history in histories(STEADY), cost in 0..9_u32) {
        let mut core = CoreSubject::default();
        for step in &history.0 {
            let _ = apply_step(&mut core, step);
            let Some(entry) = core.entry(KEY) else { continue };
            let later = step.now + entry.lifetime(step.now);
            let expected = apply(&step.policy, &mut None, later, Operation::Take(cost)).unwrap();
            prop_assert_eq!(apply_to_copy(&core, step, later, Operation::Take(cost)), expected);
            prop_assert!(entry.lifetime(later).is_zero());
        }
    }

    #[test]
    fn charge_and_refund_cancel(history in histories(STEADY), cost in 0..9_u32) {
        let mut core = CoreSubject::default();
        for step in &history.0 {
            let _ = apply_step(&mut core, step);
            // Units that do not fit may saturate a debt, or push events out of a log.
            if !apply_to_copy(&core, step, step.now, Operation::Peek(cost)).allowed() {
                continue;
            }
            let before = apply_to_copy(&core, step, step.now, Operation::Peek(1));
            let mut entry = core.entry(KEY).cloned();
            for operation in [Operation::Charge(cost), Operation::Refund(cost)] {
                let _ = apply(&step.policy, &mut entry, step.now, operation).unwrap();
            }
            let after = apply(&step.policy, &mut entry, step.now, Operation::Peek(1)).unwrap();
            prop_assert_eq!(before, after, "{}", step);
        }
    }

    #[test]
    fn apply_denied_request_changes_nothing(history in histories(STEADY)) {
        let mut core = CoreSubject::default();
        for step in &history.0 {
            let before = core.entry(KEY).cloned();
            let Some(decision) = apply_step(&mut core, step) else { continue };
            let records = matches!(step.operation, Operation::Take(_))
                && step.policy.limits().iter().any(Limit::count_all);
            if !decision.allowed() && !records {
                prop_assert_eq!(core.entry(KEY), before.as_ref(), "{}", step);
            }
        }
    }

    #[test]
    fn peek_returns_what_take_would(history in histories(CHANGING), cost in 0..40_u32) {
        let mut core = CoreSubject::default();
        for step in &history.0 {
            let _ = apply_step(&mut core, step);
            let peek = apply_to_copy(&core, step, step.now, Operation::Peek(cost));
            let take = apply_to_copy(&core, step, step.now, Operation::Take(cost));
            prop_assert_eq!(peek.allowed(), take.allowed());
            prop_assert_eq!(peek.delay(), take.delay());
        }
    }

    /// A limit given twice decides as given once does, but not by [`Gcra::try_take`].
    #[test]
    fn gcra_try_take_equals_apply(history in histories(STEADY)) {
        for limit in history.0[0].policy.limits() {
            let Limit::Gcra(gcra) = limit else { continue };
            let policy = Policy::try_from(vec![limit.clone(), limit.clone()]).unwrap();
            let (mut entry, mut debt, mut last) = (None, 0_u64, 0);
            for step in &history.0 {
                let Operation::Take(cost) = step.operation else { continue };
                let elapsed = u128::from(step.now.as_micros() - last) * u128::from(gcra.scale());
                last = step.now.as_micros();
                debt = debt.saturating_sub(u64::try_from(elapsed).unwrap_or(u64::MAX));
                let expected = apply(&policy, &mut entry, step.now, step.operation).unwrap();
                let Some(taken) = gcra.try_take(debt, cost) else {
                    let wide = u128::from(gcra.burst()) * gcra.period().as_micros() > 1 << 62;
                    let queue = gcra.name() == GcraName::LeakyQueue;
                    let apart = queue || gcra.borrow() || cost == 0 || cost > gcra.burst();
                    prop_assert!(wide || apart, "{}", step);
                    break;
                };
                prop_assert_eq!(gcra.decision(&taken), expected, "{}", step);
                debt = taken.after;
            }
        }
    }

    #[test]
    fn fixed_window_try_take_equals_apply(history in histories(STEADY)) {
        for limit in history.0[0].policy.limits() {
            let Limit::FixedWindow(window) = limit else { continue };
            let Window::Span { period, align } = window.window() else { continue };
            let policy = Policy::from(limit.clone());
            let (mut entry, mut used, mut end) = (None, 0_u64, Timestamp::EPOCH);
            for step in &history.0 {
                let Operation::Take(cost @ 1..) = step.operation else { continue };
                if step.now >= end {
                    let (now, period) = (step.now.as_micros(), u64::try_from(period.as_micros()).unwrap());
                    used = 0;
                    end = Timestamp::saturating_from_micros(match align {
                        Align::First => now + period,
                        Align::Clock => now - now % period + period,
                    });
                }
                let expected = apply(&policy, &mut entry, step.now, step.operation).unwrap();
                let taken = window.try_take(used, cost);
                let left = end.as_micros() - step.now.as_micros();
                prop_assert_eq!(window.decision(&taken, left), expected, "{}", step);
                prop_assert_eq!(taken.allowed, expected.allowed());
                used = taken.used;
                if used == 0 {
                    // None was opened.
                    end = Timestamp::EPOCH;
                } else {
                    prop_assert_eq!(entry.as_ref().and_then(Entry::window).unwrap().1, used);
                }
                let made = entry.as_ref().and_then(|it| {
                    let (start, used) = it.window()?;
                    Entry::with_window(&policy, start, used)
                });
                prop_assert_eq!(&made, &entry);
            }
        }
    }

    /// Beside the policy runs each of its limits alone, charged when the policy allows.
    #[test]
    fn policy_several_limits_are_taken_all_or_none(history in histories(Shape { reserve: false, ..STEADY })) {
        let mut core = CoreSubject::default();
        let limits = history.0[0].policy.limits();
        let alone: Vec<Policy> = limits.iter().cloned().map(Policy::from).collect();
        let mut keys = CoreSubject::default();
        for step in &history.0 {
            let Operation::Take(cost) = step.operation else { continue };
            let mut each = |operation: &dyn Fn(&Limit) -> Operation| -> Vec<_> {
                let apply_limit = |(index, policy): (usize, &Policy)| {
                    let operation = operation(&policy.limits()[0]);
                    let key = &[u8::try_from(index).unwrap()];
                    keys.apply(Invocation { key, policy, now: step.now, operation }).unwrap()
                };
                alone.iter().enumerate().map(apply_limit).collect()
            };
            let passes = each(&|_| Operation::Peek(cost));
            let decision = apply_step(&mut core, step).unwrap();
            prop_assert_eq!(decision.allowed(), passes.iter().all(|one| one.allowed()));
            let now = each(&|limit| match decision.allowed() || limit.count_all() {
                true => Operation::Charge(cost),
                false => Operation::Peek(cost),
            });
            let remaining = now.iter().map(|one| one.remaining).min().unwrap();
            let reset_after = now.iter().map(|one| one.reset_after).max().unwrap();
            prop_assert_eq!((decision.remaining, decision.reset_after), (remaining, reset_after));
        }
    }
}
