//! Requests that wait until their units are held, in virtual time.

use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use sluicegate_core::Operation;
use sluicegate_tower::{HoldLayer, Jitter, RateLimitLayer};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::{
    hold::{Action, KEY, Setup, TestBody, pass},
    layer::policy,
    store::Virtual,
};

/// A layer whose requests wait for `seconds`.
fn waits(
    seconds: u64,
    jitter: Jitter,
) -> impl FnOnce(RateLimitLayer<Arc<Virtual>>) -> HoldLayer<Arc<Virtual>> {
    move |layer| layer.wait_up_to(Duration::from_secs(seconds)).jitter(jitter).hold()
}

#[tokio::test(start_paused = true)]
async fn hold_waits_for_units_up_to_its_limit() {
    for at_once in [true, false] {
        let wait = |layer: RateLimitLayer<_>| layer.wait_up_to(Duration::from_secs(5)).hold();
        let setup = Setup::new(at_once, "concurrency:1/1h", wait);
        let (frames, response) = setup.stream().await;
        let start = Instant::now();
        let waiting = setup.start().await;
        pass(Duration::from_secs(2)).await;
        assert!(!waiting.is_finished());
        drop((frames, response));
        setup.actions.send(Action::Respond(Response::new(TestBody::Text(None)))).unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
        assert!(start.elapsed() <= Duration::from_millis(2500), "{:?}", start.elapsed());
        // A request that is cancelled while it waits holds nothing.
        let (frames, response) = setup.stream().await;
        let waiting = setup.start().await;
        waiting.abort();
        drop((frames, response));
        assert_eq!(setup.remaining().await, 1);
        let (_frames, _response) = setup.stream().await;
        let start = Instant::now();
        let denied = setup.service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!((denied.status().as_u16(), start.elapsed().as_secs()), (429, 5));
    }
}

#[tokio::test(start_paused = true)]
async fn hold_longest_wait_passes_after_a_settle() {
    for at_once in [true, false] {
        let wait = |layer: RateLimitLayer<_>| layer.wait_up_to(Duration::MAX).hold();
        let setup = Setup::new(at_once, "concurrency:1/1h", wait);
        let held = setup.stream().await;
        let waiting = setup.start().await;
        pass(Duration::from_secs(20)).await;
        assert!(!waiting.is_finished());
        drop(held);
        setup.actions.send(Action::Respond(Response::new(TestBody::Text(None)))).unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_wait_count_all_records_a_denial_once_and_waiting_never() {
    for at_once in [true, false] {
        for (seconds, expected) in [(5, 429), (15, 200)] {
            let log = "sliding-log:1/10s:count=all:keep=1h:keep-max=99";
            let setup = Setup::new(at_once, log, waits(seconds, Jitter::NONE));
            for status in [200, expected] {
                let empty = Response::new(TestBody::Text(None));
                setup.actions.send(Action::Respond(empty)).unwrap();
                let response = setup.service.clone().oneshot(Request::new(())).await.unwrap();
                assert_eq!(response.status(), status);
            }
            let all = policy("sliding-log:99/1h");
            let peek = setup.store.decide(KEY, &all, Operation::Peek(0)).unwrap();
            assert_eq!(99 - peek.remaining, 2, "one for each request");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hold_wait_count_all_beside_concurrency_records_a_denial_once() {
    for at_once in [true, false] {
        let limits = "concurrency:5/1h,sliding-log:12/10s:count=all:keep=1h:keep-max=99";
        let setup = Setup::new(at_once, limits, |layer| waits(5, Jitter::NONE)(layer.cost(5)));
        let held = setup.stream().await;
        let denied = setup.service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!(denied.status(), 429);
        drop(held);
        assert_eq!(setup.remaining().await, 2, "12, without those of two requests");
    }
}

#[tokio::test(start_paused = true)]
async fn hold_wait_answer_lost_passes_with_its_own_hold() {
    for at_once in [true, false] {
        let limits = "concurrency:1/1h,sliding-log:9/10s:count=all:keep=1h:keep-max=99";
        let setup = Setup::new(at_once, limits, waits(5, Jitter::NONE));
        setup.store.lose_next_answer();
        let start = Instant::now();
        let (_frames, response) = setup.stream().await;
        assert_eq!(response.status(), 200);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn hold_wait_with_jitter_is_longer_within_its_maximum() {
    for at_once in [true, false] {
        let short = Jitter::up_to(Duration::from_secs(2)).seeded(7);
        let long = Jitter::up_to(Duration::from_secs(1000)).seeded(7);
        for (jitter, expected) in [(short, short.delay()), (long, Duration::from_secs(5))] {
            let setup = Setup::new(at_once, "concurrency:1/1h", waits(5, jitter));
            let held = setup.stream().await;
            let start = Instant::now();
            let waiting = setup.start().await;
            drop(held);
            setup.actions.send(Action::Respond(Response::new(TestBody::Text(None)))).unwrap();
            assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
            // The first pause is 1 ms, and tokio's timer rounds up to whole milliseconds.
            let waited = start.elapsed();
            let latest = expected + Duration::from_millis(3);
            assert!(waited >= expected && waited <= latest, "{waited:?} {expected:?}");
        }
    }
}
