//! Waiting in virtual time: timeouts, retries and jitter.

use std::{
    collections::BTreeSet,
    task::{Context, Waker},
    time::Duration,
};

use sluicegate::{
    Jitter, Limiter, LocalLimiter, ManualClock, PreparedPolicy, RuntimeClock, WaitOptions,
};
use tokio::{task::yield_now, time::Instant};

use crate::slow_store::SlowStore;

const MILLISECOND: Duration = Duration::from_millis(1);

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

#[test]
fn jitter_delay_is_below_its_maximum_and_repeats_with_its_seed() {
    let max = Duration::from_millis(50);
    let delays: BTreeSet<_> =
        (0..1000).map(|seed| Jitter::up_to(max).seeded(seed).delay()).collect();
    assert!(delays.iter().all(|delay| *delay < max));
    // They cover the range, and hardly two are equal.
    assert!(delays.len() > 990);
    assert!(*delays.first().unwrap() < MILLISECOND && *delays.last().unwrap() > 49 * MILLISECOND);
    let seeded = Jitter::up_to(max).seeded(7);
    assert_eq!(seeded.delay(), seeded.delay());
    let random: BTreeSet<_> = (0..100).map(|_| Jitter::up_to(max).delay()).collect();
    assert!(random.len() > 90 && random.iter().all(|delay| *delay < max));
    assert_eq!(Jitter::NONE.delay(), Duration::ZERO);
}

/// With a clock that does not advance and one unit taken, the second request waits a second of virtual time.
async fn second_waits(policy: &PreparedPolicy, wait: WaitOptions) -> Duration {
    let limiter = LocalLimiter::with_clock(ManualClock::default());
    assert!(limiter.until_ready("k", policy, 1, wait).await.allowed());
    let start = Instant::now();
    assert!(limiter.until_ready("k", policy, 1, wait).await.allowed());
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn until_ready_with_jitter_is_delayed_within_the_timeout() {
    let queue = policy("gcra:1/1s:burst=1");
    let timeout = WaitOptions::up_to(Duration::from_secs(5));
    let second = Duration::from_secs(1);
    // Timers are rounded up to whole milliseconds.
    let rounded = |waited: Duration, expected: Duration| {
        assert!(waited >= expected && waited <= expected + 2 * MILLISECOND, "{waited:?}");
    };
    rounded(second_waits(&queue, timeout).await, second);
    let jitter = Jitter::up_to(Duration::from_secs(2)).seeded(7);
    assert!(jitter.delay() > 10 * MILLISECOND);
    rounded(second_waits(&queue, timeout.jitter(jitter)).await, second + jitter.delay());
    // The timeout ends the jitter.
    let long = Jitter::up_to(Duration::from_secs(1000)).seeded(7);
    assert!(long.delay() > Duration::from_secs(5));
    rounded(second_waits(&queue, timeout.jitter(long)).await, Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn until_ready_window_is_tried_again_until_the_timeout() {
    let window = policy("fixed-window:1/1s:count=all");
    let clock = ManualClock::default();
    let limiter = LocalLimiter::with_clock(clock.clone());
    assert!(limiter.take("k", &window, 1).allowed());
    let timeout = Duration::from_millis(2500);
    let start = Instant::now();
    // The clock of the limiter does not advance: no try succeeds.
    assert!(!limiter.until_ready("k", &window, 1, timeout).await.allowed());
    assert!(start.elapsed() >= Duration::from_secs(2) && start.elapsed() <= timeout);
    let waiting = tokio::spawn({
        let (limiter, window) = (limiter.clone(), window.clone());
        async move { limiter.until_ready("k", &window, 1, timeout).await }
    });
    yield_now().await;
    clock.advance(Duration::from_secs(1));
    assert!(waiting.await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn runtime_clock_under_paused_time_lets_waiting_requests_pass() {
    let limiter = LocalLimiter::with_clock(RuntimeClock::new());
    let start = Instant::now();
    let hour = Duration::from_hours(1);
    for text in ["fixed-window:1/1h", "sliding-log:1/1h"] {
        let policy = policy(text);
        assert!(limiter.until_ready(text, &policy, 1, Duration::ZERO).await.allowed());
        assert!(!limiter.until_ready(text, &policy, 1, hour / 2).await.allowed(), "{text}");
        assert!(limiter.until_ready(text, &policy, 1, 2 * hour).await.allowed(), "{text}");
    }
    assert!(start.elapsed() >= 2 * hour);
}

#[tokio::test]
async fn until_ready_too_late_is_denied_immediately() {
    let slow = policy("gcra:1/1h:burst=1");
    let (local, limiter) = (LocalLimiter::new(), Limiter::in_memory());
    let timeout = Duration::from_secs(60);
    for expected in [true, false] {
        assert_eq!(local.until_ready("k", &slow, 1, timeout).await.allowed(), expected);
        assert_eq!(limiter.until_ready("k", &slow, 1, timeout).await.unwrap().allowed(), expected);
        assert_eq!(local.blocking_until_ready("b", &slow, 1, timeout).allowed(), expected);
    }
    // Nothing to take needs no wait.
    assert!(local.until_ready("k", &slow, 0, timeout).await.allowed());
    assert!(local.until_ready("w", &policy("fixed-window:1/1h"), 0, timeout).await.allowed());
}

#[tokio::test(start_paused = true)]
async fn until_ready_cancelled_gives_its_units_back() {
    for text in
        ["gcra:1/1s", "token-bucket:1/1s", "leaky-bucket:1/1s", "leaky-queue:1/1s:capacity=100"]
    {
        let policy = policy(text);
        let local = LocalLimiter::with_clock(RuntimeClock::new());
        let limiter = Limiter::from(local.clone());
        assert!(local.take("k", &policy, 1).allowed());
        let before = local.peek("k", &policy, 1);
        for _ in 0..30 {
            let hour = Duration::from_hours(1);
            let waits = async {
                tokio::join!(
                    local.until_ready("k", &policy, 1, hour),
                    limiter.until_ready("k", &policy, 1, hour)
                )
            };
            // Both have reserved, and wait for their units.
            let cancelled = tokio::time::timeout(MILLISECOND, waits).await;
            assert!(cancelled.is_err(), "{text}");
        }
        let waited = Duration::from_millis(30);
        let after = local.peek("k", &policy, 1);
        assert!(after.reset_after <= before.reset_after - waited, "{text}: {after:?}");
    }
}

#[tokio::test]
async fn until_ready_cancelled_before_its_answer_gives_back_what_it_reserves() {
    const BEFORE: usize = 2;
    const AFTER: usize = 3;
    // With five units in use, the request has to wait. With none, it passes at once.
    let reserving = ["gcra:5/1h", "leaky-queue:5/1h:capacity=100", "token-bucket:5/1h"];
    let others = ["fixed-window:5/1h", "sliding-log:5/1h", "token-bucket:5/1h:refill=interval"];
    let cases = reserving.iter().flat_map(|it| [(it, 5), (it, 0)]);
    for (text, used) in cases.chain(others.iter().map(|it| (it, 0))) {
        let policy = policy(text);
        for polls in 1..=BEFORE + AFTER {
            let local = LocalLimiter::with_clock(ManualClock::default());
            let _ = local.take("k", &policy, used);
            let before = local.peek("k", &policy, 0);
            let limiter = Limiter::new(SlowStore::new(local.clone(), BEFORE, AFTER));
            let mut waits = Box::pin(limiter.until_ready("k", &policy, 5, Duration::from_hours(2)));
            for _ in 0..polls {
                let poll = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(poll.is_pending(), "{text}: it is answered after {polls} polls");
            }
            drop(waits);
            for _ in 0..50 {
                yield_now().await;
            }
            let after = local.peek("k", &policy, 0);
            // Units that could be used at once stay in use: a refund could be of units that others have taken since.
            let is_unchanged = used > 0 || polls <= BEFORE && others.contains(text);
            assert!(is_unchanged || after.remaining == 0 || text.starts_with("leaky-queue"));
            assert!(
                !is_unchanged || after == before,
                "{text}, {used} used, {polls} polls: {after:?}"
            );
        }
    }
}
