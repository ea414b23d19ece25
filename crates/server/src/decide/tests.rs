use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use sluicegate_memory::MemoryStore;
use sluicegate_rules::RuleSet;
use tokio::sync::watch;

use super::*;
use crate::wait::{self, WaitingRequest};

pub(super) fn decider() -> Decider {
    let store = OpenStore::from(MemoryStore::new());
    let rules = Arc::new(RuleStore::of(RuleSet::default()));
    Decider::new(store, rules, ServerClock::system(), PolicySettings::default())
}

/// Whichever protocol decides.
#[tokio::test]
async fn decide_refund_wakes_the_request_that_waits() {
    let decider = decider();
    let policy = decider.prepare(&"fixed-window:1/1h".parse().unwrap(), 0);
    let first =
        decider.decide(Request::one(b"k", &policy, Operation::Take(1)), decider.now()).await;
    assert!(first.unwrap().allowed());
    let (_stop, stopping) = watch::channel(false);
    let take = KeyedOperation { key: b"k", policy: &policy, operation: Operation::Take(1) };
    let mut waiting = WaitingRequest::one(take, Duration::from_secs(7200));
    let mut waited = pin!(wait::wait(&decider, &mut waiting, stopping));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waited.as_mut().poll(&mut context).is_pending());

    let refund =
        decider.decide(Request::one(b"k", &policy, Operation::Refund(1)), decider.now()).await;
    assert!(refund.unwrap().allowed());
    let Poll::Ready(waited) = waited.as_mut().poll(&mut context) else {
        panic!("it was not woken");
    };
    assert!(waited.unwrap().allowed());
}

/// A denied operation moves the key to a policy under which its window is over.
#[tokio::test]
async fn decide_several_keys_denied_wakes_the_request_that_waits() {
    let ttl = Some(Duration::from_secs(3600));
    for operation in [Operation::Take(1), Operation::Hold { id: b"h", cost: 1, ttl }] {
        let decider = decider();
        let policy = decider.prepare(&"fixed-window:1/1h".parse().unwrap(), 0);
        let shorter = decider.prepare(&"fixed-window:1/1ms".parse().unwrap(), 0);
        for key in [b"x", b"y"] {
            let take = Request::one(key, &policy, Operation::Take(1));
            let taken = decider.decide(take, decider.now()).await;
            assert!(taken.unwrap().allowed());
        }
        let (_stop, stopping) = watch::channel(false);
        let take = KeyedOperation { key: b"x", policy: &policy, operation: Operation::Take(1) };
        let mut waiting = WaitingRequest::one(take, Duration::from_secs(7200));
        let mut waited = pin!(wait::wait(&decider, &mut waiting, stopping));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waited.as_mut().poll(&mut context).is_pending());

        let later = decider.now() + Duration::from_millis(2);
        let both = [(b"x", &shorter), (b"y", &policy)];
        let both = both.map(|(key, policy)| KeyedOperation { key, policy, operation });
        let answer = decider.decide(Request::all(&both).unwrap(), later).await;
        assert!(!answer.unwrap().allowed());
        let Poll::Ready(waited) = waited.as_mut().poll(&mut context) else {
            panic!("{operation:?} did not wake it");
        };
        assert!(waited.unwrap().allowed());
    }
}

/// Other requests go first whenever a turn is over, and no decision is lost.
#[test]
fn decide_many_slow_decisions_are_made_in_turns() {
    let decider = decider();
    let now = decider.clock.now();
    let logs = ["sliding-log:10000000/1d"; 8].join(",").parse().unwrap();
    let policy = decider.prepare(&logs, 0);
    let take = KeyedOperation { key: b"k", policy: &policy, operation: Operation::Take(1) };
    let operations = vec![take; 50_000];
    let lane = Turns::default();
    let mut deciding = pin!(decider.decide_many(&lane, &operations, now));
    let mut context = Context::from_waker(Waker::noop());
    let mut turns = 1;
    let answers = loop {
        match deciding.as_mut().poll(&mut context) {
            Poll::Ready(answers) => break answers,
            Poll::Pending => turns += 1,
        }
    };
    let left =
        |answer: &Result<Answer, StoreError>| answer.as_ref().ok().map(|it| it.decision.remaining);
    assert!(answers.iter().map(left).eq((1..=50_000).map(|taken| Some(10_000_000 - taken))));
    println!("figure: 50000 decisions on eight logs are made in {turns} turns");
    assert!(turns > 20, "{turns}");
}

#[test]
fn next_turn_when_a_turn_is_over_lets_others_go_first_in_the_lane() {
    let (decider, turns) = (decider(), Turns::default());
    let mut context = Context::from_waker(Waker::noop());
    for (start, yields) in [(decider.now() + Duration::from_secs(60), 0), (Timestamp::EPOCH, 1)] {
        let mut turn = Turn::new(&turns);
        let mut pending = 0;
        let mut next = Box::pin(decider.next_turn(&turns, &mut turn, start));
        while next.as_mut().poll(&mut context).is_pending() {
            pending += 1;
        }
        drop(next);
        assert_eq!((pending, turn.is_in_lane()), (yields, yields > 0));
    }
}
