//! The library over this store: the same calls, with the same answers, as in this process.

use std::time::{Duration, Instant};

use sluicegate::{Limiter, PreparedPolicy, Retry, Shaper, StoreError};
use sluicegate_testing::{Engine, Server, now};

use crate::servers::store_of;

#[allow(dead_code, reason = "its `main` is not called")]
#[allow(unreachable_pub, missing_docs, reason = "it is a program of its own")]
#[path = "../../../sluicegate/examples/third_party.rs"]
mod third_party;

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

async fn redis_limiter(server: &Server) -> Limiter {
    Limiter::new(store_of(server).await)
}

async fn check_operations(limiter: &Limiter) {
    let policy = policy("gcra:10/1h:burst=5");
    assert_eq!(limiter.take("k", &policy, 2).await.unwrap().remaining, 3);
    assert_eq!(limiter.peek("k", &policy, 4).await.unwrap().remaining, 3);
    assert!(!limiter.peek("k", &policy, 4).await.unwrap().allowed());
    assert_eq!(limiter.charge("k", &policy, 3).await.unwrap().remaining, 0);
    assert!(!limiter.take("k", &policy, 1).await.unwrap().allowed());
    assert_eq!(limiter.refund("k", &policy, 2).await.unwrap().remaining, 2);
    let hours = Duration::from_secs(7200);
    assert!(
        limiter.reserve("k", &policy, 4, hours).await.unwrap().delay() > Duration::from_secs(700)
    );
    assert!(limiter.reset("k").await.unwrap());
    assert!(!limiter.reset("k").await.unwrap());
    assert_eq!(limiter.take("k", &policy, 6).await.unwrap().retry(), Some(Retry::Never));
    assert_eq!(limiter.peek("k", &policy, 0).await.unwrap().remaining, 5);
    let window = "fixed-window:1/1h".parse().unwrap();
    assert!(matches!(limiter.reserve("w", &window, 1, hours).await, Err(StoreError::Operation(_))));
    let many = limiter.take_many([("a", &policy, 5), ("a", &policy, 1), ("b", &policy, 1)]).await;
    let allowed: Vec<_> = many.iter().map(|it| it.as_ref().unwrap().allowed()).collect();
    assert_eq!(allowed, [true, false, true]);
}

#[tokio::test]
async fn limiter_in_memory_and_over_redis_answers_alike() {
    check_operations(&Limiter::in_memory()).await;
    let redis = Server::start(Engine::Redis70);
    check_operations(&redis_limiter(&redis).await).await;
}

async fn check_waiting(limiter: &Limiter) {
    let queue = policy("leaky-queue:50/1s:capacity=100");
    let start = now();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let (limiter, queue) = (limiter.clone(), queue.clone());
            tokio::spawn(async move {
                let answer = limiter.until_ready("q", &queue, 1, Duration::from_secs(60)).await;
                assert!(answer.unwrap().allowed());
                start.elapsed()
            })
        })
        .collect();
    let mut sent_at = Vec::new();
    for task in tasks {
        sent_at.push(task.await.unwrap());
    }
    check_spacing(&mut sent_at, Duration::from_millis(20));
    // A request that cannot pass in time is denied immediately.
    let slow = policy("gcra:1/1h:burst=1");
    assert!(limiter.until_ready("s", &slow, 1, Duration::MAX).await.unwrap().allowed());
    assert!(!limiter.until_ready("s", &slow, 1, Duration::from_secs(60)).await.unwrap().allowed());
    // A window is tried again when it ends.
    let window = policy("fixed-window:1/100ms");
    for _ in 0..3 {
        assert!(
            limiter.until_ready("w", &window, 1, Duration::from_secs(60)).await.unwrap().allowed()
        );
    }
}

/// Item `n` is no earlier than `n` intervals after the start.
fn check_spacing(sent_at: &mut [Duration], interval: Duration) {
    sent_at.sort_unstable();
    for (index, at) in sent_at.iter().enumerate() {
        assert!(*at >= interval * u32::try_from(index).unwrap(), "{sent_at:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_ready_in_memory_and_over_redis_is_spaced() {
    check_waiting(&Limiter::in_memory()).await;
    let redis = Server::start(Engine::Redis70);
    check_waiting(&redis_limiter(&redis).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shapers_of_several_processes_share_one_rate() {
    let redis = Server::start(Engine::Redis70);
    let mut tasks = Vec::new();
    let start: Instant = now();
    for _ in 0..3 {
        // A process of its own has a connection of its own.
        let limiter = redis_limiter(&redis).await;
        let shaper = Shaper::new(limiter, "k", &policy("leaky-queue:100/1s"), 10).unwrap();
        tasks.push(tokio::spawn(async move {
            for item in 0..10 {
                shaper.push(item).unwrap();
            }
            shaper.close();
            let mut sent_at = Vec::new();
            while shaper.next().await.unwrap().is_some() {
                sent_at.push(start.elapsed());
            }
            sent_at
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        let sent_at = task.await.unwrap();
        assert!(sent_at.is_sorted());
        all.extend(sent_at);
    }
    assert_eq!(all.len(), 30);
    check_spacing(&mut all, Duration::from_millis(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_third_party_over_redis_denies_and_delays() {
    let redis = Server::start(Engine::Redis70);
    let limiter = redis_limiter(&redis).await;
    assert_eq!(third_party::denying(&limiter, "30/1h", 40).await.unwrap(), 10);
    let mut order = third_party::delaying(&limiter, "30/1s", 5).await.unwrap();
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

/// Two limiters, as of two processes: the second holds once the first has settled, and tries at a pace that slows
/// down.
#[tokio::test]
async fn hold_until_ready_over_redis_holds_after_a_settle_with_few_requests() {
    let redis = Server::start(Engine::Redis70);
    let (first, second) = (redis_limiter(&redis).await, redis_limiter(&redis).await);
    let policy = policy("concurrency:1/1h");
    let held = first.hold("report", &policy, 1, None).await.unwrap();
    let started = now();
    let mut waits = tokio::spawn(async move {
        let minute = Duration::from_secs(60);
        second.hold_until_ready("report", &policy, 1, None, minute).await.unwrap().allowed()
    });
    let calls = || -> u64 {
        let stats: String = redis.query("INFO commandstats");
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1);
        calls.and_then(|it| it.split(',').next()?.parse().ok()).unwrap_or_default()
    };
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut waits).await.is_err(), "it waits");
    // The pauses are 1 ms, and then an eighth of the time waited: in `t` ms, about 8 + 8 ln(t / 8) attempts.
    let (calls, waited) = (calls(), started.elapsed());
    let most = 20.0 + 9.0 * (waited.as_secs_f64() * 1e3 / 8.0).ln();
    assert!(calls > 5 && (calls as f64) < most, "{calls} calls in {waited:?}");
    assert!(held.into_permit().unwrap().settle(0).await.unwrap().allowed());
    assert!(waits.await.unwrap());
}
