//! Tests of the order of the queues, of their bounds and of their projections.

use std::{collections::VecDeque, time::Duration};

use super::*;
use crate::{Answer, Decision, Entry, Outcome, Retry, apply};

const LATE: u64 = u64::MAX >> 12;

fn request(policy: &str, cost: u32, deadline: u64) -> KeyRequest {
    KeyRequest::take(policy.parse().unwrap(), cost, at(deadline))
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn observed(entry: Option<Entry>, now: u64) -> ObservedEntry {
    ObservedEntry { entry, store_time: at(now), local_time: at(now) }
}

#[test]
fn wait_queues_full_reject_and_free_memory_when_empty() {
    let mut queues = WaitQueues::<usize, ()>::default();
    let (queued, reserved) = (request("gcra:1/1s", 1, LATE), request("leaky-queue:1/1s", 1, LATE));
    let mut tickets = Vec::new();
    for key in 0..10 {
        for index in 0..MAX_WAITERS_OF_KEY {
            let request = if index % 3 == 0 { &reserved } else { &queued };
            tickets.push(queues.enqueue(key, request.clone(), ()).unwrap());
        }
        if key < 9 {
            assert_eq!(queues.enqueue(key, queued.clone(), ()), Err(QueueFull::Key));
            assert_eq!(queues.enqueue(key, reserved.clone(), ()), Err(QueueFull::Key));
        }
    }
    assert_eq!(queues.enqueue(11, queued.clone(), ()), Err(QueueFull::All));
    assert_eq!(queues.waiting(), MAX_WAITERS);
    for ticket in tickets {
        assert!(queues.remove_key(ticket).is_some());
        assert!(queues.remove_key(ticket).is_none());
    }
    assert_eq!(queues.waiting(), 0);
    assert!(queues.queues.is_empty());
    assert!(queues.enqueue(11, queued, ()).is_ok());
}

#[test]
fn remove_head_returns_next_head() {
    let mut queues = WaitQueues::default();
    let [a, b, c, d] = ["a", "b", "c", "d"]
        .map(|it| queues.enqueue(0, request("gcra:1/1s", 1, LATE), it).unwrap());
    assert_eq!(queues.head(&0), Some(a));
    assert_eq!(queues.remove_key(b), Some(("b", None, None)));
    assert_eq!(queues.leave(&0, a, true), Some(c));
    assert_eq!(queues.leave(&0, a, true), None);
    assert_eq!((queues.queues[&0].queued.clone(), queues.waiting()), (vec![c, d].into(), 3));
    assert_eq!(queues.remove_key(a), Some(("a", None, None)));
    assert_eq!(queues.all_changed(), [c]);
    assert_eq!(queues.remove_key(c), Some(("c", None, Some(d))));
    assert_eq!(queues.remove_key(d), Some(("d", None, None)));
    assert_eq!(queues.waiting(), 0);
}

#[test]
fn applied_wakes_head_only_if_it_may_pass_earlier() {
    let mut queues = WaitQueues::default();
    let policy: Policy = "gcra:1/1s".parse().unwrap();
    let other: Policy = "gcra:1/2s".parse().unwrap();
    let head = queues.enqueue(0, request("gcra:1/1s", 1, LATE), ()).unwrap();
    let _behind = queues.enqueue(0, request("gcra:1/2s", 1, LATE), ()).unwrap();
    let reserve = Operation::Reserve { cost: 1, max_wait: std::time::Duration::MAX };
    let mut wakes = |policy, operation| queues.applied(&0, policy, operation, true) == Some(head);
    let settle = Operation::Settle { id: b"id", used: None };
    let renew = Operation::Renew { id: b"id", ttl: None };
    for operation in [Operation::Charge(1), Operation::Refund(1), Operation::Reset, settle, renew] {
        assert!(wakes(&policy, operation) && wakes(&other, operation), "{operation:?}");
    }
    for operation in [Operation::Take(1), reserve] {
        assert!(!wakes(&policy, operation) && wakes(&other, operation), "{operation:?}");
    }
    assert!(!wakes(&other, Operation::Peek(1)));
    assert_eq!(queues.applied(&1, &policy, Operation::Reset, true), None);
}

#[test]
fn applied_take_that_may_begin_a_window_wakes_head() {
    let hold = Operation::Hold { id: b"id", cost: 1, ttl: None };
    for (text, wakes) in [
        ("fixed-window:9/1s", true),
        ("fixed-window:9/1s:align=clock", false),
        ("token-bucket:9/1s:refill=interval", true),
        ("sliding-log:9/1s", false),
        ("gcra:9/1s,fixed-window:9/1s", true),
    ] {
        let mut queues = WaitQueues::default();
        let (policy, other) = (text.parse().unwrap(), "gcra:1/1s".parse().unwrap());
        let head = queues.enqueue(0, request(text, 9, LATE), ()).unwrap();
        let expected = wakes.then_some(head);
        assert_eq!(queues.applied(&0, &policy, Operation::Take(1), true), expected, "{text}");
        assert_eq!(queues.applied(&0, &policy, hold, true), expected, "{text}");
        // A denial changes nothing, unless it migrates the state of the key.
        assert_eq!(queues.applied(&0, &policy, hold, false), None, "{text}");
        assert_eq!(queues.applied(&0, &other, hold, false), Some(head), "{text}");
    }
    let (mut queues, text) = (WaitQueues::default(), "fixed-window:9/1s:count=all");
    let (policy, head) = (text.parse().unwrap(), queues.enqueue(0, request(text, 9, LATE), ()));
    assert_eq!(queues.applied(&0, &policy, hold, false), head.ok(), "a denial is recorded");
}

/// When the last of `requests` would pass if they came at `now`, one after the other.
fn last_pass(requests: &[KeyRequest], now: u64) -> Option<u64> {
    let mut queues = WaitQueues::default();
    let mut pass_time = None;
    for request in requests {
        let ticket = queues.enqueue(0, request.clone(), ()).unwrap();
        pass_time = queues.earliest_pass(ticket, observed(None, now));
    }
    pass_time.map(Timestamp::as_micros)
}

#[test]
fn earliest_pass_requests_ahead_go_first_unless_late() {
    let (ample, scant) = (request("gcra:1/1s", 1, LATE), request("gcra:1/1s", 1, 500_000));
    let never = request("gcra:1/1s", 2, 0);
    assert_eq!(last_pass(std::slice::from_ref(&ample), 0), Some(0));
    assert_eq!(last_pass(&[ample.clone(), ample.clone()], 0), Some(1_000_000));
    assert_eq!(last_pass(&[ample.clone(), ample.clone(), ample.clone()], 0), Some(2_000_000));
    assert_eq!(last_pass(&[ample.clone(), scant, ample.clone()], 0), Some(1_000_000));
    assert_eq!(last_pass(&[ample.clone(), never.clone()], 0), None);
    assert_eq!(last_pass(&[never, ample.clone()], 0), Some(0));
    assert_eq!(last_pass(&vec![ample; 999], 5), Some(998_000_005));
}

#[test]
fn earliest_pass_store_clock_differs_is_local_time() {
    let mut queues = WaitQueues::default();
    let tickets = [(); 2].map(|()| queues.enqueue(0, request("gcra:1/1s", 1, LATE), ()).unwrap());
    let observed = || ObservedEntry { entry: None, store_time: at(70_000_000), local_time: at(5) };
    assert_eq!(queues.earliest_pass(tickets[0], observed()), Some(at(5)));
    assert_eq!(queues.earliest_pass(tickets[1], observed()), Some(at(1_000_005)));
}

#[test]
fn earliest_pass_after_every_change_is_lower_bound() {
    let policy = "sliding-log:3/1s,gcra:1/100ms:burst=2";
    let mut random = 7_u64;
    let mut below = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (random >> 33) % most
    };
    let (mut queues, mut entry, mut now) = (WaitQueues::default(), None, 0);
    let mut waiting: VecDeque<(Ticket, KeyRequest)> = VecDeque::new();
    let mut exact = 0;
    for _ in 0..4000 {
        now += below(60_000);
        // Those whose deadline has come have left.
        waiting.retain(|(ticket, queued)| {
            let stays = queued.deadline >= at(now);
            if !stays {
                queues.remove_key(*ticket);
            }
            stays
        });
        let new = request(policy, 1, now + below(20_000_000));
        match below(60) {
            // A request that does not wait takes, and one gives back.
            operation @ ..2 => {
                let takes = operation == 0;
                let operation = if takes { Operation::Take(1) } else { Operation::Refund(2) };
                let _ = apply(&new.policy, &mut entry, at(now), operation);
                queues.applied(&0, &new.policy, operation, true);
            }
            2 if !waiting.is_empty() => {
                let index = usize::try_from(below(waiting.len() as u64)).unwrap();
                let (ticket, _) = waiting.remove(index).unwrap();
                queues.remove_key(ticket);
            }
            3..24 => {
                if let Some((ticket, head)) = waiting.front()
                    && apply(&head.policy, &mut entry, at(now), Operation::Take(1))
                        .unwrap()
                        .allowed()
                {
                    queues.leave(&0, *ticket, true);
                    queues.remove_key(*ticket);
                    waiting.pop_front();
                }
            }
            _ => {
                let ticket = queues.enqueue(0, new.clone(), ()).unwrap();
                let bound = queues.earliest_pass(ticket, observed(entry.clone(), now));
                // From the head of the queue, one after the other.
                let (mut whole, mut then) = (entry.clone(), at(now));
                for (_, ahead) in &waiting {
                    let pass = ahead.pass_time(&mut whole, then);
                    if let Some(when) = pass.filter(|when| *when <= ahead.deadline) {
                        then = when;
                        let _ = apply(&ahead.policy, &mut whole, then, Operation::Take(1));
                    }
                }
                let expected = new.pass_time(&mut whole, then);
                assert!(bound <= expected, "{bound:?} {expected:?}");
                exact += usize::from(bound == expected);
                if waiting.len() < 40 {
                    waiting.push_back((ticket, new));
                } else {
                    queues.remove_key(ticket);
                }
            }
        }
    }
    for (ticket, _) in waiting {
        queues.remove_key(ticket);
    }
    assert_eq!(queues.projected_bytes, 0);
    assert!(exact > 300, "{exact} of 4000 were exact");
}

#[test]
fn projections_many_keys_take_bounded_memory() {
    let mut queues = WaitQueues::<usize, ()>::default();
    let new = request("sliding-log:9000/1h", 1, LATE);
    let mut entry = None;
    for micros in 0..9000 {
        let _ = apply(&new.policy, &mut entry, at(micros), Operation::Take(1));
    }
    let mut tickets = Vec::new();
    for key in 0..300 {
        for _ in 0..2 {
            let ticket = queues.enqueue(key, new.clone(), ()).unwrap();
            let _ = queues.earliest_pass(ticket, observed(entry.clone(), 9000));
            tickets.push(ticket);
        }
    }
    assert!((1..=MAX_TOTAL_BYTES).contains(&queues.projected_bytes), "{}", queues.projected_bytes);
    for ticket in tickets {
        queues.remove_key(ticket);
    }
    assert_eq!(queues.projected_bytes, 0);
}

/// A denial whose holds expire in `seconds`.
fn denied_for(seconds: u64) -> Answer {
    let retry = Retry::After(Duration::from_secs(seconds));
    let outcome = Outcome::Deny { retry };
    let reset_after = Duration::from_secs(seconds);
    Decision { outcome, limit: 1, remaining: 0, reset_after, binding: 0 }.into()
}

#[test]
fn waiter_hold_is_denied_at_its_deadline_only() {
    // A take under this policy would reserve its departure.
    let hold = KeyRequest::hold("gcra:1/1m".parse().unwrap(), 1, at(5_000_000));
    let mut waiter = KeyWaiter::alone(hold);
    let take = KeyStep::Apply(Operation::Take(1));
    assert_eq!(waiter.poll(at(0), KeyEvent::Start), take);
    // A hold may be settled before it expires: the request waits on.
    let sleep = KeyStep::SleepUntil(at(5_000_000));
    assert_eq!(waiter.poll(at(0), KeyEvent::Answered(denied_for(30))), sleep);
    assert_eq!(waiter.poll(at(1_000_000), KeyEvent::Woken), take);
    let expiry = KeyStep::SleepUntil(at(3_000_000));
    assert_eq!(waiter.poll(at(1_000_000), KeyEvent::Answered(denied_for(2))), expiry);
    assert_eq!(waiter.poll(at(5_000_000), KeyEvent::Woken), take);
    let denied = denied_for(26);
    assert_eq!(
        waiter.poll(at(5_000_000), KeyEvent::Answered(denied.clone())),
        KeyStep::Done(denied)
    );
}

#[test]
fn waiter_hold_that_never_fits_is_denied_at_once() {
    let hold = KeyRequest::hold("concurrency:1/1m".parse().unwrap(), 2, at(5_000_000));
    let mut waiter = KeyWaiter::alone(hold);
    assert_eq!(waiter.poll(at(0), KeyEvent::Start), KeyStep::Apply(Operation::Take(2)));
    let outcome = Outcome::Deny { retry: Retry::Never };
    let decision = Decision { outcome, ..denied_for(0).decision };
    let step = waiter.poll(at(0), KeyEvent::Answered(decision.into()));
    assert_eq!(step, KeyStep::Done(decision.into()));
}
