//! What each algorithm promises, in every interval of random histories.

use proptest::prelude::*;
use sluicegate_conformance::{CoreSubject, History, Question, Shape, Subject};
use sluicegate_core::{GcraName, Limit, Operation, Policy, Window};

use super::{KEY, STEADY, histories};

/// The most units that may pass in a closed interval of `span` µs.
fn most(limit: &Limit, span: u128) -> u128 {
    let micros = |period: std::time::Duration| period.as_micros();
    match limit {
        Limit::Gcra(it) => {
            u128::from(it.burst()) + span * u128::from(it.limit()) / micros(it.period())
        }
        Limit::IntervalBucket(it) => {
            u128::from(it.burst()) + u128::from(it.limit()) * (span / micros(it.period()) + 1)
        }
        Limit::SlidingLog(it) if span < micros(it.period()) => it.limit().into(),
        Limit::SlidingCounter(it) if span < micros(it.period()) => 2 * u128::from(it.limit()),
        Limit::FixedWindow(it) => match it.window() {
            Window::Span { period, .. } if span < micros(period) => 2 * u128::from(it.limit()),
            _ => u128::MAX,
        },
        Limit::SlidingLog(_) | Limit::SlidingCounter(_) => u128::MAX,
    }
}

fn borrows(limit: &Limit) -> bool {
    match limit {
        Limit::Gcra(it) => it.borrow(),
        Limit::IntervalBucket(it) => it.borrow(),
        _ => false,
    }
}

/// What passes of the takes in `history`, each as `(arrival, departure, cost)`.
fn passed(policy: &Policy, history: &History) -> Vec<(u64, u64, u32)> {
    let mut core = CoreSubject::default();
    let mut passed = Vec::new();
    for step in &history.0 {
        let Operation::Take(cost @ 1..) = step.operation else { continue };
        let decision = core.apply(Question { policy, ..step.of(KEY) }).unwrap();
        if decision.allowed() {
            let departure = (step.now + decision.delay()).as_micros();
            passed.push((step.now.as_micros(), departure, cost));
        }
    }
    passed
}

proptest! {
    #![proptest_config(super::cases(1_500))]

    #[test]
    fn no_interval_sees_more_than_promised(history in histories(Shape { steps: 60, ..STEADY })) {
        for limit in history.0[0].policy.limits() {
            if borrows(limit) {
                continue;
            }
            let passed = passed(&limit.clone().into(), &history);
            for first in 0..passed.len() {
                let mut sum = 0;
                for (time, _, cost) in &passed[first..] {
                    sum += u128::from(*cost);
                    let span = u128::from(time - passed[first].0);
                    prop_assert!(sum <= most(limit, span), "{limit}: {sum} in {span} us");
                }
            }
        }
    }

    #[test]
    fn a_queue_lets_them_go_in_order_and_apart(history in histories(Shape { steps: 60, ..STEADY })) {
        for limit in history.0[0].policy.limits() {
            let Limit::Gcra(queue) = limit else { continue };
            if queue.name() != GcraName::LeakyQueue {
                continue;
            }
            let passed = passed(&limit.clone().into(), &history);
            for pair in passed.windows(2) {
                let ((_, before, cost), (_, after, _)) = (pair[0], pair[1]);
                // Each departure is rounded up by less than a microsecond.
                let apart = u128::from(cost) * queue.period().as_micros() / u128::from(queue.limit());
                prop_assert!(u128::from(after - before) + 1 >= apart, "{limit}: {before}, {after}");
            }
        }
    }
}
