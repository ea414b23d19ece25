//! Items that are released at a steady rate.

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use sluicegate::{
    ClockedStore, Limiter, LocalLimiter, ManualClock, MemoryStore, PushError, Shaper,
};

use crate::slow_store::SlowStore;

#[expect(clippy::disallowed_methods, reason = "the test measures how long it waited")]
fn now() -> Instant {
    Instant::now()
}

fn shaper(limiter: &Limiter, policy: &str) -> Shaper<u32> {
    Shaper::new(limiter.clone(), "k", &policy.parse().unwrap(), 10).unwrap()
}

#[tokio::test]
async fn shaper_items_are_released_in_order_at_the_rate() {
    let shaper = shaper(&Limiter::in_memory(), "leaky-queue:100/1s:capacity=1");
    assert!(shaper.is_empty());
    for item in 0..10 {
        shaper.push(item).unwrap();
    }
    assert_eq!((shaper.push(10), shaper.len()), (Err(PushError::Full(10)), 10));
    shaper.close();
    assert_eq!(shaper.push(11).unwrap_err(), PushError::Closed(11));
    assert_eq!(PushError::Closed(11).into_item(), 11);
    let start = now();
    for item in 0..10 {
        assert_eq!(shaper.next().await.unwrap(), Some(item));
        assert!(start.elapsed() >= Duration::from_millis(10) * item);
    }
    assert_eq!(shaper.next().await.unwrap(), None);
}

#[tokio::test]
async fn shaper_cancelled_next_loses_no_item_and_no_send_time() {
    let shaper = shaper(&Limiter::in_memory(), "leaky-queue:2/1s");
    shaper.push(1).unwrap();
    shaper.push(2).unwrap();
    assert_eq!(shaper.next().await.unwrap(), Some(1));
    let start = now();
    for _ in 0..5 {
        let soon = tokio::time::timeout(Duration::from_millis(2), shaper.next()).await;
        assert!(soon.is_err());
    }
    assert_eq!(shaper.next().await.unwrap(), Some(2));
    // One send time was taken, not six.
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test]
async fn shaper_next_cancelled_while_the_store_reserves_takes_one_send_time() {
    let clock = ManualClock::default();
    let local = LocalLimiter::from(ClockedStore::new(MemoryStore::new(), clock));
    let limiter = Limiter::new(SlowStore::new(local, 0, 2));
    let policy = "leaky-queue:10/1s".parse().unwrap();
    let shaper = shaper(&limiter, "leaky-queue:10/1s");
    shaper.push(1).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert_eq!(pin!(shaper.next()).poll(&mut context), Poll::Pending);
    }
    assert_eq!(shaper.next().await.unwrap(), Some(1));
    assert_eq!(limiter.peek("k", &policy, 1).await.unwrap().remaining, 9);
}

/// Threads that contend for the lock make the time long between two uses of it.
#[test]
fn shaper_item_pushed_before_close_is_released() {
    let limiter = Limiter::in_memory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for _ in 0..100 {
        let shaper = shaper(&limiter, "leaky-queue:4000000000/1ms");
        let is_over = AtomicBool::new(false);
        let released = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        let _ = shaper.len();
                    }
                });
            }
            scope.spawn(|| {
                shaper.push(1).unwrap();
                shaper.close();
            });
            let released = runtime.block_on(async {
                loop {
                    let mut context = Context::from_waker(Waker::noop());
                    if let Poll::Ready(item) = pin!(shaper.next()).poll(&mut context) {
                        break item.unwrap();
                    }
                    tokio::task::yield_now().await;
                }
            });
            is_over.store(true, Relaxed);
            released
        });
        assert_eq!(released, Some(1));
    }
}

#[test]
fn shaper_other_policy_is_rejected() {
    let policy = "gcra:9/1s".parse().unwrap();
    let error = Shaper::<()>::new(Limiter::in_memory(), "k", &policy, 1).unwrap_err();
    assert!(error.to_string().contains("expected one `leaky-queue`"), "{error}");
}
