//! Items that are released at a steady rate.

use std::time::{Duration, Instant};

use sluicegate::{Limiter, PushError, Shaper};

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
    // One send time was taken, not six.
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn shaper_other_policy_is_rejected() {
    let policy = "gcra:9/1s".parse().unwrap();
    let error = Shaper::<()>::new(Limiter::in_memory(), "k", &policy, 1).unwrap_err();
    assert!(error.to_string().contains("expected one `leaky-queue`"), "{error}");
}
