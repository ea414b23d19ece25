//! Tests of the wait queues and of their projections.

use std::collections::VecDeque;

use sluicegate_core::{Entry, Operation, apply};

use super::{projection::MAX_TOTAL_BYTES, request::pass_time, *};

#[test]
fn wait_queues_full_reject_and_free_memory_when_empty() {
    let mut queues = WaitQueues::<usize, ()>::default();
    let mut numbers = Vec::new();
    for key in 0..10 {
        for index in 0..MAX_WAITERS_OF_KEY {
            assert_eq!(queues.check_capacity(&key), Ok(()));
            let reserved = index % 3 == 0;
            numbers
                .push((key, if reserved { queues.reserve(key) } else { queues.enqueue(key, ()) }));
        }
        if key < 9 {
            assert_eq!(queues.check_capacity(&key), Err(QueueFull::Key));
        }
    }
    assert_eq!((queues.check_capacity(&11), queues.waiting()), (Err(QueueFull::All), MAX_WAITERS));
    for (key, number) in numbers {
        queues.remove(&key, number);
    }
    assert_eq!((queues.check_capacity(&11), queues.waiting()), (Ok(()), 0));
    assert!(queues.queues.is_empty());
}

#[test]
fn leave_head_returns_next_head() {
    let mut queues = WaitQueues::default();
    let numbers = ["a", "b", "c", "d"].map(|name| queues.enqueue(0, name));
    let names = |queues: &WaitQueues<u8, &'static str>| -> Vec<_> {
        queues.queues[&0].waiters.iter().map(|(_, name)| *name).collect()
    };
    assert_eq!(queues.head(&0), Some(&(numbers[0], "a")));
    assert_eq!(queues.remove(&0, numbers[1]), None);
    assert_eq!(queues.leave(&0, numbers[0]), Some(&(numbers[2], "c")));
    assert_eq!(queues.leave(&0, numbers[0]), None);
    assert_eq!((names(&queues), queues.waiting()), (vec!["c", "d"], 3));
    assert_eq!(queues.remove(&0, numbers[0]), None);
    assert_eq!(queues.heads().collect::<Vec<_>>(), [&(numbers[2], "c")]);
    assert_eq!(queues.remove(&0, numbers[2]), Some(&(numbers[3], "d")));
    assert_eq!(queues.remove(&0, numbers[3]), None);
    assert_eq!(queues.waiting(), 0);
}

type OneKey = WaitQueues<u8, QueuedRequest>;

fn request(policy: &str, cost: u32, deadline: u64) -> QueuedRequest {
    QueuedRequest { policy: policy.parse().unwrap(), cost, deadline: at(deadline) }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// When the last of `requests` would pass if they came at `now`, one after the other.
fn when(requests: &[QueuedRequest], now: u64) -> Option<u64> {
    let (last, ahead) = requests.split_last()?;
    let mut queues = OneKey::default();
    for request in ahead {
        // Each arrives, so that what is kept is used.
        let _ = queues.earliest_pass(&0, None, request, observed(None, now));
        queues.enqueue(0, request.clone());
    }
    let at = queues.earliest_pass(&0, None, last, observed(None, now));
    at.map(Timestamp::as_micros)
}

fn observed(entry: Option<Entry>, now: u64) -> ObservedEntry {
    ObservedEntry { entry, store_time: at(now), local_time: at(now) }
}

#[test]
fn earliest_pass_requests_ahead_go_first_unless_late() {
    const LATE: u64 = u64::MAX >> 12;
    let (ample, scant) = (request("gcra:1/1s", 1, LATE), request("gcra:1/1s", 1, 500_000));
    let never = request("gcra:1/1s", 2, 0);
    assert_eq!(when(&[], 0), None);
    assert_eq!(when(std::slice::from_ref(&ample), 0), Some(0));
    assert_eq!(when(&[ample.clone(), ample.clone()], 0), Some(1_000_000));
    assert_eq!(when(&[ample.clone(), ample.clone(), ample.clone()], 0), Some(2_000_000));
    assert_eq!(when(&[ample.clone(), scant, ample.clone()], 0), Some(1_000_000));
    assert_eq!(when(&[ample.clone(), never.clone()], 0), None);
    assert_eq!(when(&[never, ample.clone()], 0), Some(0));
    assert_eq!(when(&vec![ample; 999], 5), Some(998_000_005));
}

#[test]
fn earliest_pass_after_every_change_is_lower_bound() {
    let policy = "sliding-log:3/1s,gcra:1/100ms:burst=2";
    let mut random = 7_u64;
    let mut below = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (random >> 33) % most
    };
    let (mut queues, mut entry, mut now) = (OneKey::default(), None, 0);
    let mut waiting: VecDeque<(u64, QueuedRequest)> = VecDeque::new();
    let mut exact = 0;
    for _ in 0..4000 {
        now += below(60_000);
        // Those whose deadline has come have left.
        waiting.retain(|(number, queued)| {
            let stays = queued.deadline >= at(now);
            if !stays {
                queues.remove(&0, *number);
            }
            stays
        });
        let new = request(policy, 1, now + below(20_000_000));
        match below(60) {
            // One that does not wait takes, and one gives back.
            operation @ ..2 => {
                let takes = operation == 0;
                let operation = if takes { Operation::Take(1) } else { Operation::Refund(2) };
                let _ = apply(&new.policy, &mut entry, at(now), operation);
                queues.invalidate(&0);
            }
            2 if !waiting.is_empty() => {
                let index = usize::try_from(below(waiting.len() as u64)).unwrap();
                let (number, _) = waiting.remove(index).unwrap();
                queues.remove(&0, number);
            }
            3..24 => {
                if let Some((number, head)) = waiting.front()
                    && apply(&head.policy, &mut entry, at(now), Operation::Take(1))
                        .unwrap()
                        .allowed()
                {
                    queues.leave(&0, *number);
                    queues.remove(&0, *number);
                    waiting.pop_front();
                }
            }
            _ => {
                let bound = queues.earliest_pass(&0, None, &new, observed(entry.clone(), now));
                // From the head of the line, one after the other.
                let (mut whole, mut then) = (entry.clone(), at(now));
                for (_, ahead) in &waiting {
                    let pass = pass_time(&mut whole, then, ahead);
                    if let Some(when) = pass.filter(|when| *when <= ahead.deadline) {
                        then = when;
                        let _ = apply(&ahead.policy, &mut whole, then, Operation::Take(1));
                    }
                }
                let expected = pass_time(&mut whole, then, &new);
                assert!(bound <= expected, "{bound:?} {expected:?}");
                exact += usize::from(bound == expected);
                if waiting.len() < 40 {
                    waiting.push_back((queues.enqueue(0, new.clone()), new));
                }
            }
        }
    }
    for (number, _) in waiting {
        queues.remove(&0, number);
    }
    assert_eq!(queues.projected_bytes, 0);
    assert!(exact > 300, "{exact} of 4000 were exact");
}

#[test]
fn projections_many_keys_take_bounded_memory() {
    let mut queues = WaitQueues::<usize, QueuedRequest>::default();
    let new = request("sliding-log:9000/1h", 1, u64::MAX >> 12);
    let mut entry = None;
    for micros in 0..9000 {
        let _ = apply(&new.policy, &mut entry, at(micros), Operation::Take(1));
    }
    let mut numbers = Vec::new();
    for key in 0..300 {
        for _ in 0..2 {
            let _ = queues.earliest_pass(&key, None, &new, observed(entry.clone(), 9000));
            numbers.push((key, queues.enqueue(key, new.clone())));
        }
    }
    assert!((1..=MAX_TOTAL_BYTES).contains(&queues.projected_bytes), "{}", queues.projected_bytes);
    for (key, number) in numbers {
        queues.remove(&key, number);
    }
    assert_eq!(queues.projected_bytes, 0);
}
