//! Requests that wait for several keys: every race, in virtual time.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    multi_key_world::{MultiKeyWorld, Takes},
    world::{HOUR, SECOND, at},
};
use crate::{Operation, Policy, Retry, apply};

const ONE: &str = "concurrency:1/1d";
const WINDOW: &str = "fixed-window:1/1h";
const LOG: &str = "sliding-log:2/1h:count=all:keep-max=100:keep=9h";

/// Denied, to be retried after that.
fn retry_after(micros: u64) -> Option<Result<u64, Retry>> {
    Some(Err(Retry::After(Duration::from_micros(micros))))
}

/// A world in which a hold `a` of each of the keys is open.
fn held(keys: &[usize]) -> MultiKeyWorld {
    let mut world = MultiKeyWorld::default();
    for key in keys {
        world.hold(*key, ONE, "a");
    }
    world
}

#[test]
fn keys_with_free_units_pass_immediately() {
    for takes in [[(0, WINDOW, 1), (1, WINDOW, 1)], [(0, LOG, 2), (1, WINDOW, 1)]] {
        let mut world = MultiKeyWorld::default();
        let request = world.wait(&takes, None, 0);
        assert_eq!(world.answer(request), Some(Ok(0)));
        assert_eq!((world.used(1), world.queues.waiting()), (1, 0));
    }
}

#[test]
fn key_that_can_never_pass_is_denied_immediately() {
    for policy in [WINDOW, LOG] {
        let mut world = MultiKeyWorld::default();
        assert!(world.apply(0, WINDOW, Operation::Take(1)).allowed());
        let request = world.wait(&[(0, WINDOW, 1), (1, policy, 3)], None, HOUR);
        assert_eq!(world.answer(request), Some(Err(Retry::Never)), "{policy}");
        assert_eq!(world.queues.waiting(), 0);
    }
}

#[test]
fn request_passes_once_the_last_key_allows_it() {
    let mut world = MultiKeyWorld::default();
    let policies = ["gcra:1/10s", "gcra:1/30s", "gcra:1/20s"];
    for (key, policy) in policies.iter().enumerate() {
        assert!(world.apply(key, policy, Operation::Take(1)).allowed());
    }
    let takes = [0, 1, 2].map(|key| (key, policies[key], 1));
    let request = world.wait(&takes, None, HOUR);
    assert_eq!(world.queue(request), Some(1), "it takes longest");
    world.run_until(HOUR);
    assert_eq!(world.answer(request), Some(Ok(30 * SECOND)));
}

#[test]
fn leave_head_of_a_queue_lets_the_next_pass() {
    let (mut world, policy) = (MultiKeyWorld::default(), "gcra:2/2h");
    assert!(world.apply(0, policy, Operation::Take(2)).allowed());
    let large = world.wait(&[(1, policy, 1), (0, policy, 2)], None, 9 * HOUR);
    let small = world.wait(&[(0, policy, 1), (2, policy, 1)], None, 9 * HOUR);
    assert_eq!((world.queue(large), world.queue(small)), (Some(0), Some(0)));
    let _ = world.apply(0, policy, Operation::Refund(1));
    assert_eq!(world.answer(small), None, "it is behind the other");
    world.kill(large);
    assert_eq!(world.answer(small), Some(Ok(0)));
    assert_eq!((world.queues.waiting(), world.used(1)), (0, 0));
}

#[test]
fn timeout_is_denied_exactly_at_the_deadline() {
    let mut world = held(&[1]);
    let request = world.wait(&[(0, WINDOW, 1), (1, ONE, 1)], Some("b"), 10 * SECOND);
    world.run_until(10 * SECOND - 1);
    assert_eq!(world.answer(request), None);
    world.run_until(10 * SECOND);
    assert_eq!(world.answer(request), retry_after(24 * HOUR - 10 * SECOND));
    assert_eq!((world.used(0), world.queues.waiting()), (0, 0));
}

#[test]
fn timeout_behind_another_request_is_denied_at_the_deadline() {
    let mut world = held(&[1]);
    let first = world.wait(&[(0, ONE, 1), (1, ONE, 1)], Some("b"), HOUR);
    let second = world.wait(&[(1, ONE, 1), (2, ONE, 1)], Some("c"), 10 * SECOND);
    world.run_until(10 * SECOND);
    assert_eq!(world.answer(second), retry_after(24 * HOUR - 10 * SECOND));
    assert_eq!((world.answer(first), world.queues.waiting()), (None, 1));
}

#[test]
fn last_attempt_at_the_deadline_passes_what_nothing_has_woken() {
    let mut world = held(&[1]);
    let request = world.wait(&[(0, ONE, 1), (1, ONE, 1)], Some("b"), 10 * SECOND);
    // Another process settles: this one is not notified.
    world.entries[1] = None;
    world.run_until(HOUR);
    assert_eq!(world.answer(request), Some(Ok(10 * SECOND)));
}

#[test]
fn stop_denies_what_cannot_pass_now() {
    let mut world = held(&[0, 1]);
    let takes = [(0, ONE, 1), (2, WINDOW, 1)];
    let denied = world.wait(&takes, Some("b"), HOUR);
    let passes = world.wait(&[(1, ONE, 1)], Some("c"), HOUR);
    // Another process settles: this one is not notified.
    world.entries[1] = None;
    world.stop();
    assert_eq!(world.answer(denied), retry_after(24 * HOUR));
    assert_eq!(world.answer(passes), Some(Ok(0)));
    assert_eq!((world.queues.waiting(), world.used(2)), (0, 0));
}

#[test]
fn change_of_policy_of_a_key_lets_the_request_pass_earlier() {
    let mut world = MultiKeyWorld::default();
    assert!(world.apply(0, WINDOW, Operation::Take(1)).allowed());
    let request = world.wait(&[(0, WINDOW, 1), (1, WINDOW, 1)], None, 9 * HOUR);
    world.run_until(2 * SECOND);
    // Under the other policy the window is over. The denial stores that.
    assert!(!world.apply(0, "fixed-window:1/1s", Operation::Take(2)).allowed());
    assert_eq!(world.answer(request), Some(Ok(2 * SECOND)));
}

#[test]
fn settle_of_one_key_moves_the_request_to_the_end_of_the_other_queue() {
    let mut world = held(&[0, 1]);
    let both = world.wait(&[(0, ONE, 1), (1, ONE, 1)], Some("b"), HOUR);
    let other = world.wait(&[(1, ONE, 1)], Some("c"), HOUR);
    assert_eq!((world.queue(both), world.queue(other)), (Some(0), Some(1)));
    assert!(world.settle(0, ONE, "a"));
    assert_eq!((world.queue(both), world.answer(both)), (Some(1), None));
    assert!(world.settle(1, ONE, "a"));
    assert_eq!(
        (world.answer(other), world.answer(both)),
        (Some(Ok(0)), None),
        "it was there first"
    );
    assert!(!world.settle(0, ONE, "b"), "nothing is held while it waits");
    assert!(world.settle(1, ONE, "c"));
    assert_eq!(world.answer(both), Some(Ok(0)));
}

#[test]
fn refund_of_one_key_moves_the_request_and_its_end_comes_earlier() {
    let mut world = MultiKeyWorld::default();
    assert!(world.apply(0, "gcra:1/1h", Operation::Take(1)).allowed());
    assert!(world.apply(1, "gcra:1/10s", Operation::Take(1)).allowed());
    let request = world.wait(&[(0, "gcra:1/1h", 1), (1, "gcra:1/10s", 1)], None, 9 * HOUR);
    assert_eq!(world.queue(request), Some(0));
    let _ = world.apply(0, "gcra:1/1h", Operation::Refund(1));
    assert_eq!(world.queue(request), Some(1));
    world.run_until(HOUR);
    assert_eq!(world.answer(request), Some(Ok(10 * SECOND)));
}

#[test]
fn requests_in_a_queue_pass_in_order_of_arrival() {
    let mut world = held(&[0, 1]);
    let ids = ["b", "c", "d"];
    let requests = ids.map(|id| world.wait(&[(0, ONE, 1), (1, ONE, 1)], Some(id), HOUR));
    for (before, request) in ["a", "b", "c"].into_iter().zip(requests) {
        assert_eq!(world.answer(request), None);
        assert!(world.settle(1, ONE, before) && world.settle(0, ONE, before));
        assert_eq!(world.answer(request), Some(Ok(0)), "{before}");
    }
}

#[test]
fn requests_for_the_same_keys_in_opposite_order_never_block_each_other() {
    let mut world = held(&[0, 1]);
    let one = world.wait(&[(0, ONE, 1), (1, ONE, 1)], Some("b"), HOUR);
    let two = world.wait(&[(1, ONE, 1), (0, ONE, 1)], Some("c"), HOUR);
    assert_eq!((world.queue(one), world.queue(two)), (Some(0), Some(1)));
    // Both see their units at one time, before either acts.
    assert!(world.settle_only(0, ONE, "a") && world.settle_only(1, ONE, "a"));
    world.run();
    assert_eq!((world.answer(one), world.answer(two)), (Some(Ok(0)), None), "one takes both");
    assert!(world.settle(0, ONE, "b") && world.settle(1, ONE, "b"));
    assert_eq!(world.answer(two), Some(Ok(0)));
}

/// The units come back after the request was denied, and before it is in a queue where that wakes it.
#[test]
fn settle_before_the_request_is_in_the_queue_lets_it_pass() {
    let mut world = held(&[1]);
    let request = world.arrive(&[(0, ONE, 1), (1, ONE, 1)], Some("b"), HOUR);
    world.step(request);
    assert_eq!(world.applied, [(request, false, false)]);
    assert!(world.settle(1, ONE, "a"));
    assert_eq!(world.answer(request), Some(Ok(0)));
}

#[test]
fn denial_under_count_all_is_recorded_once() {
    for end in ["at once", "at the deadline", "behind another", "at the stop"] {
        let mut world = held(&[1]);
        let timeout = if end == "at once" { 0 } else { 10 * SECOND };
        if end == "behind another" {
            world.wait(&[(1, ONE, 1)], Some("b"), HOUR);
        }
        let request = world.wait(&[(0, LOG, 1), (1, ONE, 1)], Some("c"), timeout);
        assert_eq!(world.used(0), u64::from(timeout == 0), "waiting is not recorded");
        match end {
            "at the stop" => world.stop(),
            _ => world.run_until(10 * SECOND),
        }
        assert!(world.answer(request).is_some_and(|it| it.is_err()), "{end}");
        assert_eq!(world.used(0), 1, "{end}");
    }
    let mut world = MultiKeyWorld::default();
    world.wait(&[(0, LOG, 1), (1, LOG, 3)], None, HOUR);
    assert_eq!(world.used(0), 1, "it can never pass");
}

/// The request at its deadline, which another process overtakes between its peek and its take.
#[test]
fn denial_after_a_peek_that_allowed_is_not_recorded_again() {
    let mut world = MultiKeyWorld::default();
    let request = world.arrive(&[(0, LOG, 1), (1, WINDOW, 1)], None, 0);
    world.step(request);
    assert_eq!(world.applied, [(request, true, true)]);
    assert!(world.apply_only(1, WINDOW, Operation::Take(1)).allowed());
    world.run();
    assert_eq!(world.answer(request), retry_after(HOUR));
    assert_eq!(world.used(0), 1);
}

#[test]
fn denial_after_a_peek_that_allowed_goes_on_waiting() {
    let mut world = MultiKeyWorld::default();
    let request = world.arrive(&[(0, LOG, 1), (1, WINDOW, 1)], None, 2 * HOUR);
    world.step(request);
    assert!(world.apply_only(1, WINDOW, Operation::Take(1)).allowed());
    world.run_until(2 * HOUR);
    assert_eq!(world.answer(request), Some(Ok(HOUR)));
}

#[test]
fn hold_that_is_open_on_every_key_passes_at_once() {
    // Without a peek, and where a peek denies it.
    for policy in [ONE, "concurrency:1/1d,fixed-window:9/1d:count=all"] {
        let mut world = MultiKeyWorld::default();
        world.hold(0, policy, "a");
        let takes: Takes<'_> = &[(0, policy, 1), (1, policy, 1)];
        let both = world.wait(takes, Some("a"), HOUR);
        assert_eq!(world.answer(both), if policy == ONE { Some(Ok(0)) } else { None }, "{policy}");
        if policy != ONE {
            world.kill(both);
            world.hold(1, policy, "a");
        }
        let other = world.wait(takes, Some("b"), HOUR);
        let repeated = world.wait(takes, Some("a"), HOUR);
        assert_eq!(world.answer(repeated), Some(Ok(0)), "{policy}");
        assert_eq!(world.answer(other), None);
    }
}

const LIMIT: u64 = 2;
const POLICIES: [&str; 3] = ["fixed-window:2/3s", "sliding-log:2/3s:count=all", "gcra:2/3s"];

#[derive(Clone, Debug)]
enum Act {
    Arrive(Vec<usize>, u64),
    Step(usize),
    Pass(u64),
    Kill(usize),
    Refund(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let keys = prop::sample::subsequence(vec![0, 1, 2], 1..=3).prop_shuffle();
    let act = prop_oneof![
        3 => (keys, 0..20 * SECOND).prop_map(|(keys, timeout)| Act::Arrive(keys, timeout)),
        9 => any::<usize>().prop_map(Act::Step),
        3 => (0..2 * SECOND).prop_map(Act::Pass),
        1 => any::<usize>().prop_map(Act::Kill),
        1 => (0..3_usize).prop_map(Act::Refund),
    ];
    prop::collection::vec(act, 1..100)
}

proptest! {
    /// Whatever happens between the steps of the drivers: every request is answered by its deadline, no key admits more
    /// than its policy does, and once no driver has a step to do, no head of a queue could pass.
    #[test]
    fn requests_for_several_keys_whatever_happens_pass_when_they_can(acts in acts()) {
        let mut world = MultiKeyWorld::default();
        let mut deadlines = std::collections::BTreeMap::new();
        for act in &acts {
            let pick = |index: &usize| {
                world.requests.keys().nth(index % world.requests.len().max(1)).copied()
            };
            match act {
                Act::Arrive(keys, timeout) => {
                    let takes: Vec<_> = keys.iter().map(|key| (*key, POLICIES[*key], 1)).collect();
                    let deadline = world.now + Duration::from_micros(*timeout);
                    deadlines.insert(world.arrive(&takes, None, *timeout), deadline);
                }
                Act::Step(index) => {
                    if let Some(number) = pick(index) {
                        world.step(number);
                    }
                }
                Act::Pass(micros) => {
                    world.run();
                    world.run_until(world.now.as_micros() + micros);
                }
                Act::Kill(index) => {
                    if let Some(number) = pick(index) {
                        world.kill(number);
                    }
                }
                Act::Refund(key) => {
                    let _ = world.apply(*key, POLICIES[*key], Operation::Refund(1));
                }
            }
        }
        world.run();
        for (key, policy) in POLICIES.iter().enumerate() {
            let policy: Policy = policy.parse().unwrap();
            let peek = apply(&policy, &mut world.entries[key], world.now, Operation::Peek(1));
            let is_head = world.requests.values().any(|it| it.queue() == Some(key));
            prop_assert!(!(is_head && peek.unwrap().allowed()), "key {} waits in vain", key);
        }
        world.run_until(world.now.as_micros() + 1000 * SECOND);
        prop_assert!(world.requests.is_empty());
        prop_assert_eq!(world.queues.waiting(), 0);
        for (number, when, decided) in &world.answers {
            prop_assert!(*when <= deadlines[number]);
            prop_assert!(decided.decision.allowed() || *when == deadlines[number]);
        }
        if !acts.iter().any(|act| matches!(act, Act::Refund(_))) {
            for start in world.answers.iter().map(|it| it.1) {
                let allowed = world.answers.iter().filter(|(_, when, decided)| {
                    let (from, to) = (start, at(start.as_micros() + 3 * SECOND));
                    decided.decision.allowed() && *when >= from && *when < to
                });
                // Each takes at least one of the three keys; a window or bucket admits twice its limit across an edge.
                prop_assert!(allowed.count() as u64 <= 3 * 2 * LIMIT);
            }
        }
    }
}
