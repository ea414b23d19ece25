//! A waiter without a queue.

use std::time::Duration;

use super::{
    super::{Event, Step, Waiter},
    world::{HOUR, SECOND, at, request},
};
use crate::{Answer, Decision, Operation, Outcome, Policy, Retry, Source, Timestamp, apply};

/// Runs a waiter without a queue. `answer` is the store, which may take time.
fn run_alone(
    policy: &str,
    timeout: u64,
    mut answer: impl FnMut(&mut Timestamp, Operation<'static>) -> Event,
) -> (Timestamp, Answer) {
    let mut now = Timestamp::EPOCH;
    let mut waiter = Waiter::alone(request(policy, 1, at(timeout)));
    let mut event = Event::Start;
    loop {
        event = match waiter.poll(now, event) {
            Step::Apply(operation) => answer(&mut now, operation),
            Step::Observe => Event::Observed(None),
            Step::SleepUntil(then) => {
                now = now.max(then);
                Event::Woken
            }
            Step::Done(answer) => return (now, answer),
        };
    }
}

#[test]
fn alone_waits_as_the_policy_allows() {
    for (policy, operations) in
        [("gcra:1/1s", 1), ("leaky-queue:1/1s", 1), ("fixed-window:1/1s", 2)]
    {
        let policy = policy.parse().unwrap();
        let (mut entry, mut count) = (None, 0);
        let _ = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1));
        let (now, decision) = run_alone(&policy.to_string(), HOUR, |now, operation| {
            count += 1;
            Event::Answered(apply(&policy, &mut entry, *now, operation).unwrap().into())
        });
        assert_eq!((now, decision.allowed(), count), (at(SECOND), true, operations), "{policy}");
    }
}

#[test]
fn alone_count_all_is_recorded_only_when_denied() {
    let policy = "sliding-log:1/1s:count=all:keep=1h:keep-max=99".parse().unwrap();
    for (timeout, allowed) in [(SECOND, true), (SECOND - 1, false)] {
        let mut entry = None;
        let _ = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1));
        let mut takes = 0;
        let (_, decision) = run_alone(&policy.to_string(), timeout, |now, operation| {
            takes += u32::from(matches!(operation, Operation::Take(_)));
            Event::Answered(apply(&policy, &mut entry, *now, operation).unwrap().into())
        });
        assert_eq!((decision.allowed(), takes), (allowed, 1));
    }
}

#[test]
fn alone_queue_that_grew_after_the_peek_is_denied_and_not_charged() {
    let policy: Policy = "leaky-queue:1/10s:capacity=9,fixed-window:9/1h".parse().unwrap();
    let mut entry = None;
    let (now, answer) = run_alone(&policy.to_string(), 5 * SECOND, |now, operation| {
        if matches!(operation, Operation::Take(_)) {
            // A request of another process comes first.
            let _ = apply(&policy, &mut entry, *now, Operation::Take(1));
        }
        Event::Answered(apply(&policy, &mut entry, *now, operation).unwrap().into())
    });
    assert_eq!((now, answer.retry()), (at(0), Some(Retry::After(Duration::from_secs(5)))));
    let next = apply(&policy, &mut entry, now, Operation::Take(1)).unwrap();
    assert_eq!((next.delay(), next.remaining), (Duration::from_secs(10), 7), "one unit was taken");
}

#[test]
fn alone_take_that_another_process_came_before_waits_again() {
    let policy: Policy = "sliding-log:2/1s:count=all".parse().unwrap();
    for (timeout, allowed) in [(2 * SECOND, true), (SECOND - 1, false)] {
        let (mut entry, mut takes) = (None, 0);
        let (now, answer) = run_alone(&policy.to_string(), timeout, |now, operation| {
            if matches!(operation, Operation::Take(_)) {
                takes += 1;
                if takes == 1 {
                    let _ = apply(&policy, &mut entry, *now, Operation::Take(2));
                }
            }
            Event::Answered(apply(&policy, &mut entry, *now, operation).unwrap().into())
        });
        let expected = if allowed { (at(SECOND), 2) } else { (at(0), 1) };
        assert_eq!((answer.allowed(), (now, takes)), (allowed, expected));
    }
}

#[test]
fn alone_fallback_denial_tries_again() {
    let policy = "gcra:1/1s".parse().unwrap();
    let mut operations = Vec::new();
    let (now, decision) = run_alone("gcra:1/1s", 10 * SECOND, |now, operation| {
        operations.push(operation);
        let decision = apply(&policy, &mut None, *now, operation).unwrap();
        if operations.len() > 1 {
            return Event::Answered(decision.into());
        }
        let retry = Retry::After(Duration::from_secs(4));
        let decision = Decision { outcome: Outcome::Deny { retry }, ..decision };
        Event::Answered(Answer::new(decision, Source::Fallback))
    });
    assert!(decision.allowed() && now == at(4 * SECOND));
    let reserve = |seconds| Operation::Reserve { cost: 1, max_wait: Duration::from_secs(seconds) };
    assert_eq!(operations, [reserve(10), reserve(6)]);
}

#[test]
fn cancel_fallback_departure_gives_nothing_back() {
    for (source, refund) in [(Source::Store, Some(Operation::Refund(1))), (Source::Fallback, None)]
    {
        let policy = "leaky-queue:1/1s".parse().unwrap();
        let mut entry = None;
        let _ = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1));
        let mut waiter = Waiter::alone(request("leaky-queue:1/1s", 1, at(HOUR)));
        let Step::Apply(operation) = waiter.poll(Timestamp::EPOCH, Event::Start) else {
            panic!("no operation")
        };
        assert_eq!(waiter.cancel(), None);
        let decision = apply(&policy, &mut entry, Timestamp::EPOCH, operation).unwrap();
        let event = Event::Answered(Answer::new(decision, source));
        assert_eq!(waiter.poll(Timestamp::EPOCH, event), Step::SleepUntil(at(SECOND)));
        assert_eq!(waiter.cancel(), refund);
        let step = waiter.poll(at(1), Event::Stopped);
        assert_eq!(matches!(step, Step::Apply(Operation::Refund(1))), refund.is_some());
        assert_eq!(waiter.cancel(), None);
    }
}

#[test]
fn once_waits_for_the_delay_only() {
    for (policy, expected) in [("leaky-queue:1/1s:capacity=9", Some(SECOND)), ("gcra:1/1s", None)] {
        let mut entry = None;
        let request = request(policy, 1, at(0));
        let _ = apply(&request.policy, &mut entry, at(0), Operation::Take(1));
        let mut waiter = Waiter::once(request);
        let Step::Apply(operation @ Operation::Take(1)) = waiter.poll(at(0), Event::Start) else {
            panic!("no take")
        };
        let decision = apply(&policy.parse().unwrap(), &mut entry, at(0), operation).unwrap();
        let answer = Answer::from(decision);
        match (waiter.poll(at(0), Event::Answered(answer.clone())), expected) {
            (Step::SleepUntil(then), Some(expected)) => {
                assert_eq!(then, at(expected));
                assert_eq!(waiter.cancel(), Some(Operation::Refund(1)));
                assert_eq!(waiter.poll(then, Event::Woken), Step::Done(answer));
            }
            (step, None) => assert_eq!(step, Step::Done(answer)),
            (step, _) => panic!("{step:?}"),
        }
    }
}
