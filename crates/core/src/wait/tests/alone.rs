//! A waiter without a queue.

use std::time::Duration;

use super::{
    super::{Event, Step, Waiter},
    world::{HOUR, SECOND, at},
};
use crate::{Answer, Decision, Operation, Outcome, Policy, Retry, Source, Timestamp, apply};

fn alone(policy: &str, timeout: u64) -> Waiter {
    let take = (policy.parse().unwrap(), Operation::Take(1));
    Waiter::alone([take], Duration::from_micros(timeout), false)
}

/// Runs a waiter without a queue. `answer` is the store, which may take time.
fn run_alone(
    policy: &str,
    timeout: u64,
    mut answer: impl FnMut(&mut Timestamp, Operation<'static>) -> Event,
) -> (Timestamp, Answer) {
    let mut now = Timestamp::EPOCH;
    let mut waiter = alone(policy, timeout);
    let mut event = Event::Start;
    loop {
        event = match waiter.poll(now, event) {
            Step::Apply => answer(&mut now, waiter.operation(0).with_id(&[])),
            Step::SleepUntil(then) => {
                now = now.max(then);
                Event::Woken
            }
            Step::Done(answer) => return (now, answer),
            step => panic!("{step:?}"),
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
        let mut waiter = alone("leaky-queue:1/1s", HOUR);
        assert_eq!(waiter.poll(Timestamp::EPOCH, Event::Start), Step::Apply);
        let operation = waiter.operation(0);
        assert_eq!(waiter.cancel(), None);
        let decision = apply(&policy, &mut entry, Timestamp::EPOCH, operation).unwrap();
        let event = Event::Answered(Answer::new(decision, source));
        assert_eq!(waiter.poll(Timestamp::EPOCH, event), Step::SleepUntil(at(SECOND)));
        assert_eq!(waiter.cancel(), refund);
        let step = waiter.poll(at(1), Event::Stopped);
        let refunds = step == Step::Apply && waiter.operation(0) == Operation::Refund(1);
        assert_eq!(refunds, refund.is_some());
        assert_eq!(waiter.cancel(), None);
    }
}

#[test]
fn once_waits_for_the_delay_only() {
    for (policy, expected) in [("leaky-queue:1/1s:capacity=9", Some(SECOND)), ("gcra:1/1s", None)] {
        let mut entry = None;
        let policy: Policy = policy.parse().unwrap();
        let _ = apply(&policy, &mut entry, at(0), Operation::Take(1));
        let mut waiter = Waiter::once(policy.clone(), 1);
        assert_eq!(waiter.poll(at(0), Event::Start), Step::Apply);
        assert_eq!(waiter.operation(0), Operation::Take(1));
        let decision = apply(&policy, &mut entry, at(0), waiter.operation(0)).unwrap();
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

/// The times of the attempts of a hold that is always denied.
fn attempts(timeout: u64, retry: Retry) -> Vec<u64> {
    let hold = Operation::Hold { id: b"a", cost: 1, ttl: None };
    let policy = "concurrency:1/1h".parse().unwrap();
    let mut waiter = Waiter::alone([(policy, hold)], Duration::from_micros(timeout), false);
    let (mut now, mut event, mut attempts) = (Timestamp::EPOCH, Event::Start, Vec::new());
    loop {
        event = match waiter.poll(now, event) {
            Step::Apply => {
                assert_eq!(waiter.operation(0), hold);
                attempts.push(now.as_micros());
                Event::Answered(denied(retry, Source::Store))
            }
            Step::SleepUntil(then) => {
                now = then;
                Event::Woken
            }
            Step::Done(answer) => {
                assert_eq!(answer.retry(), Some(retry));
                return attempts;
            }
            step => panic!("{step:?}"),
        };
    }
}

fn denied(retry: Retry, source: Source) -> Answer {
    let outcome = Outcome::Deny { retry };
    let reset_after = Duration::from_secs(9);
    Answer::new(Decision { outcome, limit: 1, remaining: 0, reset_after, binding: 0 }, source)
}

#[test]
fn alone_hold_pauses_longer_the_longer_it_has_waited() {
    let later = Retry::After(Duration::from_secs(5));
    let times = attempts(10 * SECOND, later);
    assert_eq!(times[..3], [0, 1_000, 2_000]);
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect();
    for (waited, pause) in &pauses {
        let expected = (waited / 8).clamp(1_000, 250_000).min(10 * SECOND - waited);
        assert_eq!(*pause, expected, "after {waited} us");
    }
    assert_eq!((times.len(), times.last()), (88, Some(&(10 * SECOND))));
    let soon = attempts(SECOND, Retry::After(Duration::from_micros(700)));
    assert_eq!(soon[..3], [0, 700, 1_400], "then it passes");
    assert_eq!(attempts(10 * SECOND, Retry::Never), [0]);
    assert_eq!(attempts(0, later), [0]);
}

/// A fallback may have hidden that the store has made the hold, which a peek would then be denied by.
#[test]
fn alone_hold_under_count_all_peeks_first_unless_it_may_be_open() {
    let policy: Policy = "concurrency:1/1h,sliding-log:1/1h:count=all".parse().unwrap();
    let hold = Operation::Hold { id: b"a", cost: 1, ttl: None };
    let later = Retry::After(Duration::from_secs(5));
    for (may_be_open, source, expected) in [
        (false, Source::Store, [Operation::Peek(1), Operation::Peek(1)]),
        (true, Source::Store, [hold, Operation::Peek(1)]),
        (true, Source::Fallback, [hold, hold]),
    ] {
        let timeout = Duration::from_secs(9);
        let mut waiter = Waiter::alone([(policy.clone(), hold)], timeout, may_be_open);
        let (mut now, mut event) = (Timestamp::EPOCH, Event::Start);
        for operation in expected {
            assert_eq!(waiter.poll(now, event), Step::Apply);
            assert_eq!(waiter.operation(0), operation, "{may_be_open} {source:?}");
            let Step::SleepUntil(then) = waiter.poll(now, Event::Answered(denied(later, source)))
            else {
                panic!("no pause");
            };
            (now, event) = (then, Event::Woken);
        }
    }
}
