//! Every race of waiting, in virtual time.

mod alone;
mod multi_key;
mod multi_key_world;
mod properties;
mod world;

use std::time::Duration;

use self::world::{HOUR, SECOND, World, at, request};
use super::key_waiter::{KeyEvent, KeyStep, KeyWaiter};
use crate::{Answer, Decision, Operation, Outcome, Policy, Retry, Source, apply};

/// Denied, to be retried after that.
fn retry_after(micros: u64) -> Option<Result<u64, Retry>> {
    Some(Err(Retry::After(Duration::from_micros(micros))))
}

const NEVER: Option<Result<u64, Retry>> = Some(Err(Retry::Never));

#[test]
fn wait_unused_key_passes_immediately() {
    for policy in ["gcra:1/1s", "leaky-queue:1/1s", "sliding-log:1/1s:count=all"] {
        let mut world = World::default();
        let ticket = world.wait(policy, 1, 0);
        assert_eq!(world.answer(ticket), Some(Ok(0)), "{policy}");
        assert_eq!(world.queues.waiting(), 0);
    }
}

#[test]
fn wait_queue_passes_in_order_as_units_return() {
    let mut world = World::default();
    let tickets: Vec<_> = (0..5).map(|_| world.wait("gcra:1/1s:burst=1", 1, HOUR)).collect();
    world.run_until(HOUR);
    for (index, ticket) in (0..).zip(tickets) {
        assert_eq!(world.answer(ticket), Some(Ok(index * SECOND)));
    }
    assert_eq!(world.applied.len(), 1 + 4 * 2, "only the head tries, once before and once after");
}

#[test]
fn wait_different_costs_pass_in_order_of_arrival() {
    let mut world = World::default();
    assert!(world.apply("gcra:2/2s", Operation::Take(1)).allowed());
    let large = world.wait("gcra:2/2s", 2, HOUR);
    let small = world.wait("gcra:2/2s", 1, HOUR);
    assert_eq!(world.answer(small), None, "one unit is free, but the larger request is first");
    world.run_until(HOUR);
    assert_eq!(world.answer(large), Some(Ok(SECOND)));
    assert_eq!(world.answer(small), Some(Ok(2 * SECOND)));
}

#[test]
fn kill_head_next_waiter_tries() {
    let mut world = World::default();
    assert!(world.apply("gcra:2/2h", Operation::Take(1)).allowed());
    let large = world.wait("gcra:2/2h", 2, 100 * HOUR);
    let small = world.wait("gcra:2/2h", 1, 100 * HOUR);
    assert_eq!(world.kill(large), None);
    assert_eq!(world.answer(small), Some(Ok(0)));
}

#[test]
fn kill_behind_head_changes_nothing_for_others() {
    let mut world = World::default();
    let tickets: Vec<_> = (0..4).map(|_| world.wait("gcra:1/1s:burst=1", 1, HOUR)).collect();
    assert_eq!(world.kill(tickets[2]), None);
    world.run_until(HOUR);
    assert_eq!(world.answer(tickets[1]), Some(Ok(SECOND)));
    assert_eq!(world.answer(tickets[2]), None);
    assert_eq!(world.answer(tickets[3]), Some(Ok(2 * SECOND)));
}

#[test]
fn timeout_head_overtaken_is_denied_and_next_waiter_tries() {
    let (mut world, policy) = (World::default(), "gcra:1/10s:burst=1");
    assert!(world.apply(policy, Operation::Take(1)).allowed());
    let head = world.wait(policy, 1, 15 * SECOND);
    let next = world.wait(policy, 1, HOUR);
    assert_eq!((world.answer(head), world.answer(next)), (None, None));
    // A request that does not wait takes the unit of the head.
    world.now = at(10 * SECOND);
    assert!(world.apply("gcra:1/10s:burst=1", Operation::Charge(1)).allowed());
    assert_eq!(world.answer(head), retry_after(10 * SECOND));
    world.run_until(HOUR);
    assert_eq!(world.answer(next), Some(Ok(20 * SECOND)));
}

#[test]
fn timeout_behind_head_is_denied_at_its_deadline() {
    let (mut world, policy) = (World::default(), "gcra:1/10s:burst=1");
    assert!(world.apply(policy, Operation::Take(1)).allowed());
    let head = world.wait(policy, 1, HOUR);
    let next = world.wait(policy, 1, 25 * SECOND);
    // It moves the passes from 10 s and 20 s to 30 s and 40 s.
    assert!(world.apply(policy, Operation::Charge(2)).allowed());
    world.run_until(25 * SECOND - 1);
    assert_eq!(world.answer(next), None);
    world.run_until(HOUR);
    assert_eq!(world.answer(next), retry_after(5 * SECOND));
    assert_eq!(world.answer(head), Some(Ok(30 * SECOND)));
}

#[test]
fn policy_change_keeps_order_and_usage() {
    let (mut world, old, new) = (World::default(), "fixed-window:1/1h", "fixed-window:5/1h");
    assert!(world.apply(old, Operation::Take(1)).allowed());
    let tickets = [old, new, old, new].map(|policy| world.wait(policy, 1, 9 * HOUR));
    assert!(tickets.iter().all(|it| world.answer(*it).is_none()), "the head waits");
    world.kill(tickets[0]);
    assert_eq!(world.answer(tickets[1]), Some(Ok(0)), "under the new policy, four are left");
    assert_eq!((world.answer(tickets[2]), world.used()), (None, 2));
    world.run_until(2 * HOUR);
    assert_eq!(world.answer(tickets[2]), Some(Ok(HOUR)));
    assert_eq!((world.answer(tickets[3]), world.used()), (Some(Ok(HOUR)), 0));
}

#[test]
fn arrival_that_would_pass_too_late_is_denied_immediately() {
    let (mut world, policy) = (World::default(), "gcra:1/1h");
    assert!(world.apply(policy, Operation::Take(1)).allowed());
    let short = world.wait(policy, 1, HOUR - 1);
    assert_eq!(world.answer(short), retry_after(HOUR));
    let large = world.wait(policy, 2, 100 * HOUR);
    assert_eq!(world.answer(large), NEVER);
    let head = world.wait(policy, 1, 9 * HOUR);
    // It would pass in time if it were alone.
    let behind = world.wait(policy, 1, 2 * HOUR - 1);
    assert_eq!(world.answer(behind), retry_after(HOUR));
    let behind = world.wait(policy, 1, 2 * HOUR);
    world.run_until(3 * HOUR);
    assert_eq!(world.answer(head), Some(Ok(HOUR)));
    assert_eq!(world.answer(behind), Some(Ok(2 * HOUR)));
}

#[test]
fn arrival_that_would_overtake_is_denied_until_its_turn() {
    let mut world = World::default();
    assert!(world.apply("gcra:3/3h", Operation::Take(2)).allowed());
    let _ahead = world.wait("gcra:3/3h", 2, 100 * HOUR);
    let small = world.wait("gcra:3/3h", 1, 0);
    assert_eq!(world.answer(small), retry_after(2 * HOUR));
    assert!(world.apply("gcra:3/3h", Operation::Take(1)).allowed(), "others may overtake");
}

#[test]
fn arrival_before_woken_head_migrates_the_key_passes_in_time() {
    let (policy, other) = ("fixed-window:3/3s", "sliding-log:3/10s");
    let mut world = World::default();
    assert!(world.apply(other, Operation::Take(3)).allowed());
    let head = world.wait(policy, 1, 20 * SECOND);
    // The head is woken, and another request observes the key before the head tries again.
    assert!(!world.apply_only(other, Operation::Take(1)).allowed());
    let next = world.arrive(policy, 1, 4 * SECOND);
    while world.step(next) {}
    world.run_until_idle();
    world.run_until(10 * SECOND);
    let passes = Some(Ok(3 * SECOND));
    assert_eq!((world.answer(head), world.answer(next)), (passes, passes));
}

#[test]
fn arrival_large_entry_is_decided_as_if_alone() {
    let (mut world, policy) = (World { is_large: true, ..World::default() }, "gcra:1/1h");
    assert!(world.apply(policy, Operation::Take(1)).allowed());
    let head = world.wait(policy, 1, HOUR);
    let denied = world.wait(policy, 1, HOUR - 1);
    assert_eq!(world.answer(denied), retry_after(HOUR));
    let behind = world.wait(policy, 1, 2 * HOUR - 1);
    assert_eq!(world.answer(behind), None, "it is not known that it will be late");
    world.run_until(3 * HOUR);
    assert_eq!(world.answer(head), Some(Ok(HOUR)));
    assert_eq!(world.answer(behind), retry_after(HOUR));
}

#[test]
fn denied_wait_count_all_is_recorded_once() {
    let (mut world, policy) = (World::default(), "sliding-log:2/1h:count=all:keep-max=100:keep=9h");
    assert!(world.apply(policy, Operation::Take(2)).allowed());
    world.wait(policy, 1, 1000);
    assert_eq!(world.used(), 3, "denied on arrival");
    let head = world.wait(policy, 1, 2 * HOUR);
    assert_eq!(world.used(), 3, "waiting is not recorded");
    let behind = world.wait(policy, 2, 2 * HOUR - 1);
    assert_eq!(world.used(), 3 + 2, "denied on arrival, because the head is first");
    assert_eq!(world.answer(behind), retry_after(HOUR));
    let _ = world.apply(policy, Operation::Reset);
    assert_eq!((world.answer(head), world.used()), (Some(Ok(0)), 1));
    assert!(world.apply(policy, Operation::Take(1)).allowed());
    let (head, behind) = (world.wait(policy, 2, 2 * HOUR), world.wait(policy, 1, 3 * HOUR));
    world.stop();
    assert!(world.answer(head).is_some_and(|it| it.is_err()));
    assert!(world.answer(behind).is_some_and(|it| it.is_err()));
    assert_eq!(world.used(), 2 + 2 + 1, "denied at the stop");
}

/// A denial that is recorded begins a window, and a hold that expires within it is charged to it: the head passes earlier.
#[test]
fn denied_wait_that_begins_a_window_wakes_the_head() {
    let (mut world, policy) = (World::default(), "fixed-window:1/10s:count=all");
    let ttl = Some(Duration::from_secs(19));
    assert!(world.apply(policy, Operation::Hold { id: b"id", cost: 1, ttl }).allowed());
    let head = world.wait(policy, 1, HOUR);
    world.run_until(12 * SECOND);
    let denied = world.wait(policy, 1, 1000);
    assert!(world.answer(denied).is_some_and(|it| it.is_err()));
    world.run_until(HOUR);
    assert_eq!(world.answer(head), Some(Ok(22 * SECOND)), "without the denial it would be 29 s");
}

#[test]
fn reservation_departs_at_interval() {
    let mut world = World::default();
    let policy = "leaky-queue:1/1s:capacity=4";
    let tickets: Vec<_> = (0..4).map(|_| world.wait(policy, 1, HOUR)).collect();
    assert_eq!(world.queues.waiting(), 3);
    let overflow = world.wait(policy, 1, HOUR);
    assert_eq!(world.answer(overflow), None, "it waits for a place, then for its departure");
    world.run_until(HOUR);
    for (index, ticket) in (0..).zip(tickets) {
        assert_eq!(world.answer(ticket), Some(Ok(index * SECOND)));
    }
    assert_eq!(world.answer(overflow), Some(Ok(4 * SECOND)));
}

#[test]
fn reservation_beyond_timeout_is_denied_immediately() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1h:capacity=9");
    assert_eq!(world.wait(policy, 1, 0), world.answers[0].0);
    let denied = world.wait(policy, 1, SECOND);
    assert_eq!(world.answer(denied), retry_after(HOUR - SECOND));
    let large = world.wait(policy, 10, 100 * HOUR);
    assert_eq!(world.answer(large), NEVER);
    assert_eq!(world.used(), 1);
}

#[test]
fn reservation_answer_shows_the_key_at_departure() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1s:capacity=9");
    for _ in 0..3 {
        world.wait(policy, 1, HOUR);
    }
    world.run_until(HOUR);
    let decision = world.answers[2].2;
    assert_eq!((decision.remaining, decision.delay()), (8, Duration::ZERO));
}

#[test]
fn departure_while_the_store_is_unavailable_is_the_one_that_it_granted() {
    let policy: Policy = "leaky-queue:1/1s:capacity=9".parse().unwrap();
    let (mut entry, start) = (None, at(0));
    let _ = apply(&policy, &mut entry, start, Operation::Take(3)).unwrap();
    let mut waiter = KeyWaiter::queued(request("leaky-queue:1/1s:capacity=9", 1, at(HOUR)));
    let KeyStep::Apply(reserve) = waiter.advance(start, KeyEvent::Start, true) else {
        panic!("it reserves its departure")
    };
    let granted = apply(&policy, &mut entry, start, reserve).unwrap();
    let departure = start + granted.delay();
    let answered = KeyEvent::Answered(granted.into());
    assert_eq!(waiter.advance(start, answered, true), KeyStep::SleepUntil(departure));
    let peek = KeyStep::Apply(Operation::Peek(0));
    assert_eq!(waiter.advance(departure, KeyEvent::Woken, true), peek);
    let outcome = Outcome::Deny { retry: Retry::After(Duration::from_millis(100)) };
    let denial = Answer::new(Decision { outcome, ..granted }, Source::Fallback);
    let expected = Decision {
        outcome: Outcome::Allow { delay: Duration::ZERO },
        reset_after: Duration::from_secs(1),
        ..granted
    };
    let done = KeyStep::Done(Answer::new(expected, Source::Store));
    assert_eq!(waiter.advance(departure, KeyEvent::Answered(denial), true), done);
}

#[test]
fn kill_reservation_is_given_back() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1h:capacity=2");
    assert!(world.apply(policy, Operation::Take(1)).allowed());
    let waiting = world.wait(policy, 1, 9 * HOUR);
    assert_eq!((world.answer(waiting), world.used()), (None, 2));
    assert_eq!(world.kill(waiting), Some(Operation::Refund(1)));
    assert_eq!(world.used(), 1);
}

#[test]
fn kill_reservation_due_but_not_answered_is_given_back() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1h:capacity=3");
    assert!(world.apply(policy, Operation::Take(2)).allowed());
    let waiting = world.wait(policy, 1, 9 * HOUR);
    world.now = at(2 * HOUR);
    assert_eq!((world.answer(waiting), world.used()), (None, 1));
    assert_eq!(world.kill(waiting), Some(Operation::Refund(1)));
    assert_eq!(world.used(), 0);
}

#[test]
fn stop_gives_reservations_back_and_denies() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1h:capacity=9");
    let tickets: Vec<_> = (0..4).map(|_| world.wait(policy, 1, 9 * HOUR)).collect();
    world.now = at(1);
    assert_eq!(world.used(), 4);
    world.stop();
    assert_eq!(world.used(), 1);
    assert_eq!(world.answer(tickets[0]), Some(Ok(0)));
    assert_eq!(world.answer(tickets[3]), retry_after(3 * HOUR - 1));
}

#[test]
fn stop_denies_head_and_those_behind() {
    let (mut world, policy) = (World::default(), "gcra:1/1h");
    let tickets: Vec<_> = (0..3).map(|_| world.wait(policy, 1, 9 * HOUR)).collect();
    world.stop();
    assert_eq!(world.answer(tickets[1]), retry_after(HOUR));
    assert_eq!(world.answer(tickets[2]), retry_after(HOUR), "those ahead have left");
    assert_eq!(world.used(), 1);
}

#[test]
fn restart_waiters_of_new_process_continue_with_the_state() {
    for (policy, stopped, killed) in
        [("leaky-queue:1/1s:capacity=9", SECOND, 3 * SECOND), ("gcra:1/1s", SECOND, SECOND)]
    {
        for (is_stopped, expected) in [(true, stopped), (false, killed)] {
            let mut before = World::default();
            for _ in 0..3 {
                before.wait(policy, 1, HOUR);
            }
            if is_stopped {
                before.stop();
            }
            // A killed process gives nothing back.
            let mut world = World { entry: before.entry, ..World::default() };
            let waiting = world.wait(policy, 1, HOUR);
            world.run_until(HOUR);
            assert_eq!(world.answer(waiting), Some(Ok(expected)), "{policy} {is_stopped}");
        }
    }
}

#[test]
fn mixed_policy_waits_for_window_and_queue() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1s:capacity=9,fixed-window:3/1h");
    let tickets: Vec<_> = (0..5).map(|_| world.wait(policy, 1, 2 * HOUR)).collect();
    let denied = world.wait(policy, 1, HOUR - 1);
    assert_eq!(world.answer(denied), retry_after(HOUR));
    world.run_until(2 * HOUR);
    let expected = [0, SECOND, 2 * SECOND, HOUR, HOUR + SECOND];
    for (ticket, expected) in tickets.into_iter().zip(expected) {
        assert_eq!(world.answer(ticket), Some(Ok(expected)));
    }
}

#[test]
fn mixed_policy_departure_beyond_deadline_is_denied_and_not_charged() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/10s:capacity=9,fixed-window:9/1h");
    world.wait(policy, 1, 0);
    let denied = world.wait(policy, 1, SECOND);
    assert_eq!(world.answer(denied), retry_after(9 * SECOND));
    assert_eq!(world.used(), 2, "one unit of each limit");
}

#[test]
fn kill_departing_refund_frees_the_head() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1s:capacity=9,fixed-window:2/1h");
    let tickets: Vec<_> = (0..3).map(|_| world.wait(policy, 1, 9 * HOUR)).collect();
    assert_eq!(world.kill(tickets[1]), Some(Operation::Refund(1)));
    world.run_until(HOUR);
    assert_eq!(world.answer(tickets[2]), Some(Ok(SECOND)));
}

#[test]
fn stop_departing_refund_frees_the_head() {
    let (mut world, policy) = (World::default(), "leaky-queue:1/1s:capacity=9,fixed-window:2/1h");
    let tickets: Vec<_> = (0..3).map(|_| world.wait(policy, 1, 9 * HOUR)).collect();
    world.poll(tickets[1], KeyEvent::Stopped);
    world.run_until_idle();
    world.run_until(HOUR);
    assert_eq!(world.answer(tickets[1]), retry_after(SECOND));
    assert_eq!(world.answer(tickets[2]), Some(Ok(SECOND)));
}

#[test]
fn applied_that_lowers_usage_passes_the_head() {
    let wakers = [
        ("gcra:1/1h", Operation::Reset),
        ("gcra:1/1h", Operation::Refund(1)),
        ("fixed-window:1/1h", Operation::Refund(1)),
        ("gcra:1000000/1s", Operation::Refund(9)),
    ];
    for (policy, operation) in wakers {
        let mut world = World::default();
        assert!(world.apply("gcra:1/1h", Operation::Take(1)).allowed());
        let head = world.wait("gcra:1/1h", 1, 9 * HOUR);
        world.now = at(HOUR / 2);
        let _ = world.apply(policy, operation);
        assert!(world.answer(head).is_some_and(|it| it.is_ok()), "{policy} {operation:?}");
    }
}

#[test]
fn reservation_of_another_policy_wakes_the_head() {
    let mut world = World::default();
    assert!(world.apply("gcra:1/1h", Operation::Take(1)).allowed());
    let head = world.wait("gcra:1/1h", 1, 9 * HOUR);
    world.wait("leaky-queue:1000/1s", 1, HOUR);
    assert!(world.applied.iter().filter(|(it, ..)| *it == head).count() > 1, "it has tried again");
}

#[test]
fn woken_after_deadline_take_that_passes_is_an_answer() {
    for policy in ["gcra:1/1h", "sliding-log:1/1h:count=all"] {
        let mut world = World::default();
        assert!(world.apply(policy, Operation::Take(1)).allowed());
        let head = world.wait(policy, 1, HOUR);
        // The timer is a millisecond late.
        world.now = at(HOUR + 1000);
        world.run_until_idle();
        assert_eq!(world.answer(head), Some(Ok(HOUR + 1000)), "{policy}");
        assert_eq!(world.used(), 1);
    }
}
