//! Items that wait for their turn, alone and with other processes.

use std::time::{Duration, Instant};

use sluicegate::{Limiter, Shaper};

use sluicegate_testing::{Engine, Server};

use crate::server::limiter;

#[expect(clippy::disallowed_methods, reason = "how long it waited is what is tested")]
fn now() -> Instant {
    Instant::now()
}

fn shaper(limiter: &Limiter, policy: &str) -> Shaper<u32> {
    Shaper::new(limiter.clone(), "k", &policy.parse().unwrap(), 10).unwrap()
}

#[tokio::test]
async fn items_go_in_order_at_the_pace_of_the_queue() {
    let shaper = shaper(&Limiter::in_memory(), "leaky-queue:100/1s:capacity=1");
    assert!(shaper.is_empty());
    for item in 0..10 {
        shaper.push(item).unwrap();
    }
    assert_eq!((shaper.push(10).unwrap_err().0, shaper.len()), (10, 10));
    shaper.close();
    assert_eq!(shaper.push(11).unwrap_err().0, 11);
    let start = now();
    for item in 0..10 {
        assert_eq!(shaper.next().await.unwrap(), Some(item));
        assert!(start.elapsed() >= Duration::from_millis(10) * item);
    }
    assert_eq!(shaper.next().await.unwrap(), None);
}

#[tokio::test]
async fn shaper_cancelled_push_loses_nothing() {
    let shaper = shaper(&Limiter::in_memory(), "leaky-queue:20/1s");
    shaper.push(1).unwrap();
    shaper.push(2).unwrap();
    assert_eq!(shaper.next().await.unwrap(), Some(1));
    let start = now();
    for _ in 0..5 {
        let soon = tokio::time::timeout(Duration::from_millis(2), shaper.next()).await;
        assert!(soon.is_err());
    }
    assert_eq!(shaper.next().await.unwrap(), Some(2));
    // One departure was taken, not six.
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shapers_of_several_processes_keep_one_pace_together() {
    let redis = Server::start(Engine::Redis70);
    let mut tasks = Vec::new();
    let start = now();
    for _ in 0..3 {
        // A process of its own has a connection of its own.
        let shaper = shaper(&limiter(&redis).await, "leaky-queue:100/1s");
        tasks.push(tokio::spawn(async move {
            for item in 0..10 {
                shaper.push(item).unwrap();
            }
            shaper.close();
            let mut departures = Vec::new();
            while shaper.next().await.unwrap().is_some() {
                departures.push(start.elapsed());
            }
            departures
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        let departures = task.await.unwrap();
        assert!(departures.is_sorted());
        all.extend(departures);
    }
    all.sort_unstable();
    assert_eq!(all.len(), 30);
    for (place, departure) in all.iter().enumerate() {
        assert!(*departure >= Duration::from_millis(10) * u32::try_from(place).unwrap(), "{all:?}");
    }
}

#[test]
fn only_a_leaky_queue_has_departures() {
    let policy = "gcra:9/1s".parse().unwrap();
    let error = Shaper::<()>::new(Limiter::in_memory(), "k", &policy, 1).unwrap_err();
    assert!(error.to_string().contains("expected one `leaky-queue`"), "{error}");
}
