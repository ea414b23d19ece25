//! Requests that wait until they are allowed, in virtual time.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use http::{Request, Response};
use sluicegate_core::{Operation, PreparedPolicy, Store};
use sluicegate_tower::{Jitter, KeyPart, RateLimit, RateLimitLayer};
use tokio::{
    task::{JoinHandle, yield_now},
    time::Instant,
};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer};

use crate::{
    layer::{CountingService, policy},
    store::Virtual,
};

/// The one key of a layer without parts.
const KEY: &[u8] = b"7:default,";

fn service(
    at_once: bool,
    text: &str,
    seconds: u64,
) -> (Arc<Virtual>, RateLimit<CountingService, Arc<Virtual>>) {
    let store = Arc::new(Virtual::new(at_once));
    let layer = RateLimitLayer::new(Arc::clone(&store), policy(text));
    let service = layer.wait_up_to(Duration::from_secs(seconds)).layer(CountingService::default());
    (store, service)
}

/// Sends a request in a task; returns when it was answered, in milliseconds, and the status.
fn send<S>(service: &S) -> JoinHandle<(u128, u16)>
where
    S: Service<Request<()>, Response = Response<String>> + Clone + Send + 'static,
    S::Error: std::fmt::Debug,
    S::Future: Send,
{
    let (service, start) = (service.clone(), Instant::now());
    tokio::spawn(async move {
        let status = service.oneshot(Request::new(())).await.unwrap().status().as_u16();
        (start.elapsed().as_millis(), status)
    })
}

/// Lets all tasks come as far as they come without time.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn wait_requests_pass_in_order_and_evenly_spaced() {
    for at_once in [true, false] {
        let (_, service) = service(at_once, "gcra:1/1s:burst=1", 3);
        let mut tasks = Vec::new();
        for _ in 0..6 {
            tasks.push(send(&service));
            settle().await;
        }
        let mut answered = Vec::new();
        for task in tasks {
            answered.push(task.await.unwrap());
        }
        // Tokio's timer counts whole milliseconds, and is never early.
        for (place, (millis, status)) in answered.into_iter().enumerate() {
            let (expected, due) = if place < 4 { (200, place as u128 * 1000) } else { (429, 0) };
            assert_eq!(status, expected, "{place}");
            assert!((due..=due + 1).contains(&millis), "{place}: {millis}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wait_window_is_tried_again() {
    for at_once in [true, false] {
        let (_, service) = service(at_once, "fixed-window:1/1s", 3);
        let tasks: Vec<_> = (0..6).map(|_| send(&service)).collect();
        let mut passed = Vec::new();
        for task in tasks {
            let (millis, status) = task.await.unwrap();
            if status == 200 {
                passed.push(millis / 1000);
            } else {
                assert_eq!((status, millis <= 3000), (429, true));
            }
        }
        passed.sort_unstable();
        // One per window. Which request comes first in the last one depends on chance.
        assert!(passed.starts_with(&[0, 1, 2]) && passed.len() <= 4, "{passed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_that_is_never_polled_releases_its_reservation() {
    for text in ["gcra:1/1s:burst=1", "leaky-queue:1/1s:capacity=9"] {
        let (store, service) = service(true, text, 600);
        assert_eq!(send(&service).await.unwrap().1, 200);
        let ready = || async { service.clone().ready_oneshot().await.unwrap() };
        let prepared = PreparedPolicy::from(policy(text));
        let request = sluicegate_core::Request::one(KEY, &prepared, Operation::Peek(1));
        let peek = || store.apply(request).now().unwrap().unwrap();
        let before = peek().decision;
        drop(ready().await.call(Request::new(())));
        assert_eq!(peek().decision, before, "{text}");
        let start = Instant::now();
        assert_eq!(send(&service).await.unwrap().1, 200);
        assert!(start.elapsed() < Duration::from_millis(1100), "{text}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn wait_longest_wait_passes() {
    for (at_once, text) in [true, false]
        .into_iter()
        .flat_map(|it| ["gcra:1/1s:burst=1", "fixed-window:1/1s"].map(|text| (it, text)))
    {
        let layer = RateLimitLayer::new(Virtual::new(at_once), policy(text));
        let service = layer.wait_up_to(Duration::MAX).layer(CountingService::default());
        for (status, seconds) in [(200, 0), (200, 1)] {
            let (millis, actual) = send(&service).await.unwrap();
            assert_eq!((actual, millis / 1000), (status, seconds), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wait_with_jitter_is_longer_within_its_maximum() {
    let short = Jitter::up_to(Duration::from_secs(2)).seeded(7);
    let long = Jitter::up_to(Duration::from_secs(1000)).seeded(7);
    let second = Duration::from_secs(1);
    for at_once in [true, false] {
        for (text, max_wait, jitter, expected) in [
            ("gcra:1/1s:burst=1", Some(5), short, second + short.delay()),
            ("gcra:1/1s:burst=1", Some(5), long, 5 * second),
            ("fixed-window:1/1s", Some(5), short, second + short.delay()),
            ("fixed-window:1/1s", Some(5), long, 5 * second),
            // A reservation is not used before its time, nor after the longest wait.
            ("leaky-queue:1/1s:capacity=2", Some(1), long, second),
            ("leaky-queue:1/1s:capacity=2", None, long, second),
        ] {
            let mut layer = RateLimitLayer::new(Virtual::new(at_once), policy(text)).jitter(jitter);
            if let Some(seconds) = max_wait {
                layer = layer.wait_up_to(Duration::from_secs(seconds));
            }
            let service = layer.layer(CountingService::default());
            assert_eq!(send(&service).await.unwrap(), (0, 200), "it need not wait");
            let (waited, status) = send(&service).await.unwrap();
            let expected = expected.as_millis();
            assert_eq!(status, 200, "{text}");
            assert!((expected..=expected + 2).contains(&waited), "{text}: {waited} {expected}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wait_with_jitter_separates_requests_of_a_window() {
    for at_once in [true, false] {
        let layer = RateLimitLayer::new(Virtual::new(at_once), policy("fixed-window:20/1s"));
        let layer = layer.wait_up_to(Duration::from_secs(5));
        let layer = layer.jitter(Jitter::up_to(Duration::from_secs(1)));
        let service = layer.layer(CountingService::default());
        let tasks: Vec<_> = (0..40).map(|_| send(&service)).collect();
        let mut times = BTreeSet::new();
        for task in tasks {
            let (millis, status) = task.await.unwrap();
            assert_eq!(status, 200);
            times.insert(millis);
        }
        // The first 20 do not wait. The others have random delays, of which few are equal.
        assert!(times.len() > 10 && times.iter().all(|it| *it <= 2001), "{times:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_count_all_records_a_denial_once_and_waiting_never() {
    for at_once in [true, false] {
        let log = "sliding-log:1/10s:count=all:keep=1h:keep-max=99";
        let (store, service) = service(at_once, log, 15);
        let used = || {
            let peek = store.decide(KEY, &policy("sliding-log:99/1h"), Operation::Peek(0));
            99 - peek.unwrap().remaining
        };
        assert_eq!((send(&service).await.unwrap(), used()), ((0, 200), 1));
        assert_eq!(send(&service).await.unwrap().1, 200);
        assert_eq!(used(), 2, "it has waited, and its waiting is not recorded");
        let (first, second) = (send(&service), send(&service));
        settle().await;
        let mut answers = [first.await.unwrap().1, second.await.unwrap().1];
        answers.sort_unstable();
        assert_eq!((answers, used()), ([200, 429], 4), "one take each");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_queue_policy_delays_without_wait_up_to() {
    for at_once in [true, false] {
        let store = Arc::new(Virtual::new(at_once));
        let layer = RateLimitLayer::new(store, policy("leaky-queue:1/1s:capacity=3"));
        let service = layer.layer(CountingService::default());
        let mut tasks = Vec::new();
        for _ in 0..4 {
            tasks.push(send(&service));
            settle().await;
        }
        for (task, expected) in tasks.into_iter().zip([(0, 200), (1, 200), (2, 200), (0, 429)]) {
            let (millis, status) = task.await.unwrap();
            assert_eq!((millis / 1000, status), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wait_cancelled_request_releases_reservation() {
    for at_once in [true, false] {
        let (store, service) = service(at_once, "gcra:1/1m:burst=1", 600);
        assert_eq!(send(&service).await.unwrap(), (0, 200));
        let backlog = || {
            let peek = store.decide(KEY, &policy("gcra:1/1m:burst=1"), Operation::Peek(1));
            peek.unwrap().reset_after.as_secs()
        };
        let waiting: Vec<_> = (0..3).map(|_| send(&service)).collect();
        settle().await;
        assert_eq!(backlog(), 240);
        waiting[1].abort();
        settle().await;
        assert_eq!(backlog(), 180);
        // A request that passes keeps its units.
        let [first, _, third] = <[_; 3]>::try_from(waiting).unwrap();
        assert_eq!(first.await.unwrap().1, 200);
        assert_eq!(third.await.unwrap().1, 200);
        assert_eq!(backlog(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn wait_request_holds_no_capacity_of_the_service() {
    for at_once in [true, false] {
        let store = Arc::new(Virtual::new(at_once));
        // One concurrent request in the service, for all.
        let inner = ConcurrencyLimitLayer::new(1).layer(CountingService::default());
        let layer = RateLimitLayer::new(Arc::clone(&store), policy("gcra:1/1m:burst=1"))
            .by(KeyPart::own(|head| head.header("x-user").map(str::to_owned)))
            .wait_up_to(Duration::from_secs(600));
        let service = layer.layer(inner);
        let request = |user: &str| {
            let service = service.clone();
            let request = Request::builder().header("x-user", user).body(()).unwrap();
            tokio::spawn(async move {
                let start = Instant::now();
                let status = service.oneshot(request).await.unwrap().status().as_u16();
                (start.elapsed().as_secs(), status)
            })
        };
        assert_eq!(request("a").await.unwrap(), (0, 200));
        let waits = request("a");
        settle().await;
        assert_eq!(request("b").await.unwrap(), (0, 200));
        assert_eq!(waits.await.unwrap(), (60, 200));
    }
}

#[tokio::test(start_paused = true)]
async fn wait_store_becomes_unavailable_is_rejected() {
    let (store, service) = service(false, "fixed-window:1/1s", 3);
    assert_eq!(send(&service).await.unwrap().1, 200);
    let waits = send(&service);
    settle().await;
    store.set_away(true);
    assert_eq!(waits.await.unwrap().1, 503);
    store.set_away(false);
    let window = PreparedPolicy::new(&policy("fixed-window:1/1s"));
    let peek = sluicegate_core::Request::one(KEY, &window, Operation::Peek(0));
    assert!(store.apply(peek).await.is_ok());
}
