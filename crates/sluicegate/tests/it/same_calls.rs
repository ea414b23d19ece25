//! `LocalLimiter`, `Limiter` and `SingleLimiter` have the same calls, with the same arguments and answers.

use std::{fmt::Debug, time::Duration};

use sluicegate::{Limiter, LocalLimiter, ManualClock, PreparedPolicy, SingleLimiter};

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

fn shown(answer: impl Debug) -> String {
    format!("{answer:?}")
}

/// Results of calls that return an answer, a result or a future of them, in this process.
macro_rules! local {
    (plain $call:expr) => {
        $call
    };
    (fallible $call:expr) => {
        $call.unwrap()
    };
    (waiting $call:expr) => {
        $call.await
    };
    (waiting_fallible $call:expr) => {
        $call.await.unwrap()
    };
    (many $call:expr) => {
        $call
    };
}

/// The same over any store, where every call is a future of a result.
macro_rules! remote {
    (many $call:expr) => {
        $call.await.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    ($kind:ident $call:expr) => {
        $call.await.unwrap()
    };
}

/// The result of each call on keys, allowed and denied.
macro_rules! every_call {
    ($limiter:ident, $result:ident) => {{
        let (rate, concurrency) = (policy("gcra:10/1h:burst=5"), policy("concurrency:2/30s"));
        let (ttl, wait) = (Duration::from_secs(9), Duration::from_millis(3));
        let takes = |cost| [("a", &rate, cost), ("b", &rate, 1)];
        let holds = |cost| [("a", &concurrency, cost), ("b", &concurrency, 1)];
        let mut results = Vec::new();
        for cost in [1, 9] {
            let keys = [
                shown($result!(plain $limiter.take("k", &rate, cost))),
                shown($result!(plain $limiter.peek("k", &rate, cost))),
                shown($result!(plain $limiter.charge("k", &rate, cost))),
                shown($result!(plain $limiter.refund("k", &rate, cost))),
                shown($result!(fallible $limiter.reserve("k", &rate, cost, wait))),
                shown($result!(waiting $limiter.until_ready("k", &rate, cost, wait))),
                shown($result!(plain $limiter.reset("k"))),
                shown($result!(many $limiter.take_many(takes(cost)))),
                shown($result!(fallible $limiter.take_all(takes(cost)))),
                shown($result!(fallible $limiter.take_all(takes(cost))).allowed()),
                shown($result!(fallible $limiter.hold("h", &concurrency, cost, None))),
                shown($result!(fallible $limiter.hold_with_id("h", &concurrency, "id", cost, ttl))),
                shown($result!(fallible $limiter.hold_all(holds(cost), ttl))),
                shown(
                    $result!(waiting_fallible $limiter.hold_until_ready("h", &rate, cost, ttl, wait)),
                ),
                shown(
                    $result!(waiting_fallible $limiter.hold_all_until_ready(holds(cost), ttl, wait)),
                ),
            ];
            results.extend(keys);
        }
        results
    }};
}

#[tokio::test(start_paused = true)]
async fn limiters_every_call_on_keys_has_equal_arguments_and_results() {
    let local = LocalLimiter::with_clock(ManualClock::default());
    let limiter = Limiter::from(LocalLimiter::with_clock(ManualClock::default()));
    let (local, limiter) = (every_call!(local, local), every_call!(limiter, remote));
    assert_eq!(local.len(), 30);
    assert_eq!(local, limiter);
}

#[tokio::test]
async fn single_limiter_every_call_answers_as_local_limiter() {
    let (rate, concurrency) = (policy("gcra:10/1h:burst=5"), policy("concurrency:2/30s"));
    let local = LocalLimiter::with_clock(ManualClock::default());
    let single = SingleLimiter::with_clock(rate.clone(), ManualClock::default());
    let wait = Duration::ZERO;
    for cost in [1, 9] {
        assert_eq!(single.take(cost), local.take("k", &rate, cost));
        assert_eq!(single.peek(cost), local.peek("k", &rate, cost));
        assert_eq!(single.charge(cost), local.charge("k", &rate, cost));
        assert_eq!(single.refund(cost), local.refund("k", &rate, cost));
        assert_eq!(single.reserve(cost, wait), local.reserve("k", &rate, cost, wait));
        let answer = single.until_ready(cost, wait).await;
        assert_eq!(answer, local.until_ready("k", &rate, cost, wait).await);
        let answer = single.blocking_until_ready(cost, wait);
        assert_eq!(answer, local.blocking_until_ready("k", &rate, cost, wait));
        assert_eq!(single.reset(), local.reset("k"));
    }
    let single = SingleLimiter::with_clock(concurrency.clone(), ManualClock::default());
    for cost in [1, 9] {
        assert_eq!(
            shown(single.hold(cost, None)),
            shown(local.hold("h", &concurrency, cost, None))
        );
        assert_eq!(
            shown(single.hold_with_id("id", cost, None)),
            shown(local.hold_with_id("h", &concurrency, "id", cost, None))
        );
        assert_eq!(
            shown(single.hold_until_ready(cost, None, wait).await),
            shown(local.hold_until_ready("h", &concurrency, cost, None, wait).await)
        );
        assert_eq!(
            shown(single.blocking_hold_until_ready(cost, None, wait)),
            shown(local.blocking_hold_until_ready("h", &concurrency, cost, None, wait))
        );
    }
    let hold = || single.hold_with_id("id", 2, None).unwrap();
    let (first, repeated) = (hold(), hold());
    assert!(first.allowed() && repeated.allowed(), "a repeated request holds once");
}

#[test]
fn blocking_hold_all_until_ready_takes_all_or_none() {
    let limiter = LocalLimiter::with_clock(ManualClock::default());
    let (one, two) = (policy("concurrency:1/30s"), policy("concurrency:2/30s"));
    let (holds, wait) = ([("a", &two, 1), ("b", &one, 1)], Duration::from_millis(3));
    let held = limiter.blocking_hold_all_until_ready(holds, None, wait).unwrap();
    let denied = limiter.blocking_hold_all_until_ready(holds, None, wait).unwrap();
    assert!(held.allowed() && !denied.allowed());
    assert_eq!(limiter.peek("a", &two, 0).remaining, 1, "the denied request holds nothing");
    drop(held);
    assert_eq!(limiter.peek("a", &two, 0).remaining, 2);
}
