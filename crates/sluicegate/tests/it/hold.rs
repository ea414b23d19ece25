//! Holds: permits that are settled, renewed, dropped and cancelled, over stores that answer now and later.

use std::{
    future::poll_fn,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use sluicegate::{
    Error, HoldError, HoldOutcome, Limiter, LocalLimiter, ManualClock, OperationError, Permit,
    PreparedPolicy, RequestError, Retry, StoreError,
};
use tokio::task::yield_now;

use crate::slow_store::SlowStore;

/// Lets tokio's paused time pass.
async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

const TTL: Duration = Duration::from_secs(30);

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

/// A store that behaves as a remote one, a limiter over it, its table, and its clock.
struct Remote {
    store: SlowStore,
    limiter: Limiter,
    local: LocalLimiter<ManualClock>,
    clock: ManualClock,
}

/// A store that applies operations in poll `before`, from 0, and answers `after` polls later.
fn remote(before: usize, after: usize) -> Remote {
    let clock = ManualClock::default();
    let local = LocalLimiter::with_clock(clock.clone());
    let store = SlowStore::new(local.clone(), before, after);
    Remote { limiter: Limiter::new(store.clone()), store, local, clock }
}

async fn permit(limiter: &Limiter, policy: &PreparedPolicy, cost: u32) -> Permit {
    let held = limiter.hold("k", policy, cost, TTL).await.unwrap();
    held.into_permit().expect("the units are available")
}

/// Lets the tasks in the background finish.
async fn background() {
    for _ in 0..50 {
        yield_now().await;
    }
}

/// Units of a limit of 10 that are in use or held.
fn in_use(local: &LocalLimiter<ManualClock>, policy: &PreparedPolicy) -> u32 {
    10 - local.peek("k", policy, 0).remaining
}

#[test]
fn local_permit_settle_charges_rates_and_frees_concurrency() {
    let clock = ManualClock::default();
    let limiter = LocalLimiter::with_clock(clock.clone());
    let both = policy("concurrency:10/30s,fixed-window:10/1h");
    let hold = |cost| limiter.hold("k", &both, cost, None).unwrap().into_permit();
    let permit = hold(6).unwrap();
    assert_eq!((permit.answer().remaining, permit.id().len()), (4, 16));
    assert!(hold(5).is_none());
    assert_eq!(permit.settle(2).remaining, 8);
    drop(hold(3));
    assert_eq!(in_use(&limiter, &both), 5);
    let permit = hold(1).unwrap();
    clock.advance(Duration::from_secs(29));
    assert!(permit.renew().allowed());
    clock.advance(Duration::from_secs(29));
    assert!(permit.settle(0).allowed());
    let permit = hold(1).unwrap();
    clock.advance(Duration::from_secs(30));
    assert_eq!(permit.renew().retry(), Some(Retry::Never));
    let expired = permit.settle(5);
    assert_eq!((expired.retry(), expired.remaining), (Some(Retry::Never), 4));
}

#[test]
fn local_hold_invalid_is_an_error() {
    let limiter = LocalLimiter::new();
    let hold = |text: &str, id: &[u8], ttl| match limiter
        .hold_with_id("k", &policy(text), id, 1, ttl)
        .unwrap_err()
    {
        OperationError::Hold(error) => error,
        error => panic!("{error}"),
    };
    assert_eq!(hold("gcra:1/1s", b"a", None), HoldError::MissingTtl);
    assert_eq!(hold("leaky-queue:1/1s", b"a", Some(TTL)), HoldError::Queue);
    assert_eq!(hold("concurrency:1/1s", b"", None), HoldError::Id(0));
    assert_eq!(hold("concurrency:1/1s", &[0; 65], None), HoldError::Id(65));
    assert!(matches!(hold("concurrency:1/1s", b"a", Some(TTL)), HoldError::Ttl { .. }));
    let error = Error::from(OperationError::Hold(HoldError::Queue));
    assert!(matches!(error, Error::Store(StoreError::Hold(HoldError::Queue))));
}

#[tokio::test]
async fn request_without_a_key_or_with_too_many_is_an_error() {
    let one = policy("gcra:1/1s");
    let local = LocalLimiter::new();
    let limiter = Limiter::from(local.clone());
    for (count, error, text) in [
        (0, RequestError::MissingKey, "missing key: expected at least one"),
        (9, RequestError::TooManyKeys(9), "invalid number of keys `9`: expected 1 to 8"),
    ] {
        let names: Vec<_> = (0..count).map(|number| number.to_string()).collect();
        let keys: Vec<_> = names.iter().map(|name| (name, &one, 1)).collect();
        let keys = || keys.iter().copied();
        let operation = OperationError::Request(error);
        assert_eq!(local.take_all(keys()).unwrap_err(), operation);
        assert_eq!(local.hold_all(keys(), TTL).unwrap_err(), operation);
        assert_eq!(local.hold_all_until_ready(keys(), TTL, TTL).await.unwrap_err(), operation);
        assert_eq!(local.blocking_hold_all_until_ready(keys(), TTL, TTL).unwrap_err(), operation);
        let arguments = StoreError::Arguments(text.to_owned());
        assert_eq!(limiter.take_all(keys()).await.unwrap_err(), arguments);
        assert_eq!(limiter.hold_all(keys(), TTL).await.unwrap_err(), arguments);
        assert_eq!(limiter.hold_all_until_ready(keys(), TTL, TTL).await.unwrap_err(), arguments);
        assert_eq!(Error::from(error), Error::Store(arguments.clone()));
        assert_eq!(Error::from(operation), Error::Store(arguments));
    }
    assert_eq!(local.len(), 0, "nothing is taken or held");
}

#[test]
fn hold_with_id_repeated_holds_once() {
    let clock = ManualClock::default();
    let limiter = LocalLimiter::with_clock(clock);
    let one = policy("concurrency:10/30s");
    let hold = || limiter.hold_with_id("k", &one, "job 7", 4, None).unwrap().into_permit().unwrap();
    let (first, second) = (hold(), hold());
    assert_eq!(in_use(&limiter, &one), 4);
    assert!(first.settle(4).allowed());
    assert!(!second.settle(4).allowed());
}

#[test]
fn permit_dropped_without_runtime_frees_local_and_expires_remote() {
    let one = policy("concurrency:10/30s");
    let Remote { limiter, local, clock, .. } = remote(0, 1);
    let mut held = Box::pin(limiter.hold("k", &one, 3, None));
    let mut context = Context::from_waker(Waker::noop());
    assert!(held.as_mut().poll(&mut context).is_pending());
    let Poll::Ready(Ok(HoldOutcome::Allowed(permit))) = held.as_mut().poll(&mut context) else {
        panic!("it is allowed")
    };
    drop(permit);
    assert_eq!(in_use(&local, &one), 3);
    clock.advance(Duration::from_secs(30));
    assert_eq!(in_use(&local, &one), 0);
    let permit = local.hold("k", &one, 3, None).unwrap();
    std::thread::spawn(|| drop(permit)).join().unwrap();
    assert_eq!(in_use(&local, &one), 0);
}

#[tokio::test(start_paused = true)]
async fn permit_dropped_settles_in_the_background() {
    for (text, left) in [("concurrency:10/1h", 0), ("fixed-window:10/1h", 4)] {
        let Remote { limiter, local, .. } = remote(1, 2);
        let policy = policy(text);
        let permit = permit(&limiter, &policy, 4).await;
        assert_eq!(in_use(&local, &policy), 4);
        // On a thread without a runtime, too.
        std::thread::spawn(|| drop(permit)).join().unwrap();
        background().await;
        assert_eq!(in_use(&local, &policy), left, "{text}");
    }
}

/// Polls `future` up to `polls` times, then drops it.
async fn poll_times<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        while left > 0 {
            left -= 1;
            if let Poll::Ready(result) = future.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
        }
        Poll::Ready(None)
    })
    .await
}

/// Before and after the polls in which an operation is applied, and polls after which its future is dropped.
fn cancellations() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..3).flat_map(|before| {
        (0..3).flat_map(move |after| (0..=before + after).map(move |polls| (before, after, polls)))
    })
}

#[tokio::test(start_paused = true)]
async fn hold_cancelled_at_every_await_holds_nothing() {
    let one = policy("concurrency:10/1h,fixed-window:10/1h");
    for (before, after, polls) in cancellations() {
        let Remote { limiter, local, .. } = remote(before, after);
        assert!(poll_times(limiter.hold("k", &one, 3, None), polls).await.is_none());
        background().await;
        assert_eq!(in_use(&local, &one), 0, "applied in {before}, answered {after} later, {polls}");
        let all = limiter.hold_all([("k", &one, 3), ("l", &one, 3)], None);
        assert!(poll_times(all, polls).await.is_none());
        background().await;
        assert_eq!(in_use(&local, &one) + 10 - local.peek("l", &one, 0).remaining, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_with_id_cancelled_leaves_the_hold_of_another_permit() {
    let one = policy("concurrency:10/1h");
    for (before, after, polls) in cancellations() {
        let Remote { limiter, local, clock, .. } = remote(before, after);
        let first = limiter.hold_with_id("k", &one, "job", 3, None).await.unwrap();
        assert!(poll_times(limiter.hold_with_id("k", &one, "job", 3, None), polls).await.is_none());
        background().await;
        assert_eq!(in_use(&local, &one), 3);
        drop(first);
        background().await;
        assert_eq!(in_use(&local, &one), 0);
        // Alone, it expires.
        drop(poll_times(limiter.hold_with_id("k", &one, "job", 3, None), polls).await);
        clock.advance(Duration::from_secs(3600));
        assert_eq!(in_use(&local, &one), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn settle_cancelled_at_every_await_charges_once() {
    let window = policy("fixed-window:10/1h");
    for (before, after, polls) in cancellations() {
        let Remote { limiter, local, .. } = remote(before, after);
        let permit = permit(&limiter, &window, 8).await;
        assert!(poll_times(permit.settle(5), polls).await.is_none());
        background().await;
        // A future that was never polled drops its permit with it.
        let expected = if polls == 0 { 8 } else { 5 };
        assert_eq!(in_use(&local, &window), expected, "{before}, {after}, {polls}");
    }
}

#[tokio::test(start_paused = true)]
async fn settle_unavailable_is_repeated_until_it_is_known() {
    let window = policy("fixed-window:10/1h");
    let Remote { store, limiter, local, .. } = remote(0, 1);
    let permit = permit(&limiter, &window, 8).await;
    store.fail(4);
    assert!(permit.settle(5).await.unwrap_err().is_unavailable());
    assert_eq!(in_use(&local, &window), 8);
    // 50, 100 and 200 ms, in tokio's time.
    pass(Duration::from_millis(400)).await;
    assert_eq!((in_use(&local, &window), store.calls()), (5, 6));
}

#[tokio::test(start_paused = true)]
async fn settle_unavailable_ends_when_the_hold_has_expired() {
    let window = policy("fixed-window:10/1h");
    let Remote { store, limiter, .. } = remote(0, 1);
    let permit = permit(&limiter, &window, 8).await;
    store.fail(usize::MAX);
    drop(permit);
    pass(TTL).await;
    let calls = store.calls();
    assert!((3..15).contains(&calls), "{calls}");
    pass(TTL).await;
    assert_eq!(store.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn keep_alive_renews_until_the_permit_is_dropped() {
    let one = policy("concurrency:10/30s");
    let Remote { limiter, local, clock, store } = remote(1, 1);
    let permit = permit(&limiter, &one, 4).await.keep_alive();
    for renewal in 0..20 {
        // A renewal that fails does not end it: the next one is in time.
        store.fail(usize::from(renewal % 5 == 3));
        clock.advance(Duration::from_secs(10));
        pass(Duration::from_millis(10_010)).await;
        assert_eq!(in_use(&local, &one), 4);
    }
    assert_eq!(store.calls(), 21);
    drop(permit);
    background().await;
    assert_eq!(in_use(&local, &one), 0);
    let calls = store.calls();
    pass(Duration::from_secs(100)).await;
    assert_eq!(store.calls(), calls);
}

#[tokio::test]
async fn hold_all_and_take_all_take_all_or_none() {
    let Remote { limiter, local, .. } = remote(0, 1);
    let (one, window) = (policy("concurrency:1/30s"), policy("fixed-window:10/1h"));
    let keys = [("r", &one, 1), ("k", &window, 4)];
    let permits = limiter.hold_all(keys, TTL).await.unwrap().into_permit().unwrap();
    let HoldOutcome::Denied(denied) = limiter.hold_all(keys, TTL).await.unwrap() else {
        panic!("one is in flight")
    };
    assert_eq!((denied.key, in_use(&local, &window)), (0, 4));
    let [request, tokens] = <[Permit; 2]>::try_from(permits).unwrap();
    assert_eq!(tokens.answer().remaining, 6);
    assert_eq!(tokens.settle(1).await.unwrap().remaining, 9);
    assert!(request.settle(1).await.unwrap().allowed());
    let same = [("k", &window, 2), ("k", &window, 5)];
    assert_eq!(limiter.hold_all(same, TTL).await.unwrap().into_permit().unwrap().len(), 1);
    assert_eq!(local.hold_all(same, TTL).unwrap().into_permit().unwrap().len(), 1);
    background().await;
    assert_eq!(in_use(&local, &window), 5);
    let takes = [("k", &window, 5), ("l", &window, 11)];
    assert!(!limiter.take_all(takes).await.unwrap().allowed());
    assert!(!local.take_all(takes).unwrap().allowed());
    assert_eq!(in_use(&local, &window), 5);
    assert!(local.take_all([("k", &window, 5)]).unwrap().allowed());
}

#[tokio::test]
async fn local_take_under_concurrency_is_denied_for_ever() {
    let limiter = LocalLimiter::with_clock(ManualClock::default());
    let concurrency = policy("concurrency:2/30s");
    let HoldOutcome::Allowed(_permit) = limiter.hold("k", &concurrency, 1, None).unwrap() else {
        panic!("the key is unused");
    };
    let answers = [
        limiter.take("k", &concurrency, 1),
        limiter.charge("k", &concurrency, 1),
        limiter.refund("k", &concurrency, 1),
        limiter.until_ready("k", &concurrency, 1, TTL).await,
        limiter.blocking_until_ready("k", &concurrency, 1, TTL),
    ];
    for answer in answers {
        assert_eq!((answer.retry(), answer.remaining), (Some(Retry::Never), 1));
    }
    assert!(limiter.peek("k", &concurrency, 1).allowed(), "nothing was changed");
}

#[tokio::test(start_paused = true)]
async fn hold_until_ready_passes_after_a_settle_or_is_denied_in_time() {
    let Remote { limiter, local, .. } = remote(1, 1);
    let concurrency = policy("concurrency:1/1h");
    let first = limiter.hold("k", &concurrency, 1, None).await.unwrap().into_permit().unwrap();
    let start = tokio::time::Instant::now();
    let settle = async {
        pass(Duration::from_secs(20)).await;
        let _ = first.settle(1).await.unwrap();
        start.elapsed()
    };
    let wait = Duration::from_secs(60);
    let next = limiter.hold_until_ready("k", &concurrency, 1, None, wait);
    let (next, settled) = tokio::join!(next, settle);
    let late = start.elapsed().checked_sub(settled).unwrap();
    assert!(late <= Duration::from_millis(250), "{late:?}");
    let permit = next.unwrap().into_permit().expect("the hold fits");
    let (start, wait) = (tokio::time::Instant::now(), Duration::from_secs(5));
    assert!(!limiter.hold_until_ready("k", &concurrency, 1, None, wait).await.unwrap().allowed());
    assert_eq!(start.elapsed(), wait);
    let never = limiter.hold_until_ready("k", &concurrency, 2, None, wait).await.unwrap();
    assert!(!never.allowed() && start.elapsed() == wait, "it can never pass");
    let both = [("k", &concurrency, 1), ("other", &concurrency, 1)];
    let denied = limiter.hold_all_until_ready(both, None, wait).await.unwrap();
    assert!(!denied.allowed() && start.elapsed() == 2 * wait);
    drop(permit);
    background().await;
    assert!(limiter.hold_all_until_ready(both, None, wait).await.unwrap().allowed());
    background().await;
    assert!(local.hold_until_ready("k", &concurrency, 1, None, wait).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn hold_until_ready_under_count_all_records_one_denial() {
    let limiter = LocalLimiter::with_clock(ManualClock::default());
    let log = policy("sliding-log:9/1h:count=all");
    assert!(limiter.take("k", &log, 8).allowed());
    let wait = Duration::from_secs(5);
    let denied = limiter.hold_until_ready("k", &log, 2, TTL, wait).await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(limiter.peek("k", &log, 0).remaining, 0);
    let _ = limiter.refund("k", &log, 2);
    assert_eq!(limiter.peek("k", &log, 0).remaining, 1, "one denial of 2 units was recorded");
}

/// As without waiting: a denial is recorded also if it can never pass.
#[tokio::test(start_paused = true)]
async fn hold_until_ready_that_can_never_pass_under_count_all_is_recorded() {
    let local = LocalLimiter::with_clock(ManualClock::default());
    let limiter = Limiter::from(local.clone());
    let log = policy("sliding-log:9/1h:count=all");
    let wait = Duration::from_secs(5);
    let is_recorded = |key: &str| local.peek(key, &log, 0).remaining == 0;
    assert!(!local.hold_until_ready("a", &log, 10, TTL, wait).await.unwrap().allowed());
    assert!(!local.blocking_hold_until_ready("b", &log, 10, TTL, wait).unwrap().allowed());
    assert!(!limiter.hold_until_ready("c", &log, 10, TTL, wait).await.unwrap().allowed());
    let holds = [("d", &log, 10)];
    assert!(!limiter.hold_all_until_ready(holds, TTL, wait).await.unwrap().allowed());
    for key in ["a", "b", "c", "d"] {
        assert!(is_recorded(key), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn hold_all_until_ready_under_count_all_records_one_denial() {
    let local = LocalLimiter::with_clock(ManualClock::default());
    let limiter = Limiter::from(local.clone());
    let (log, concurrency) = (policy("sliding-log:9/1h:count=all"), policy("concurrency:1/30s"));
    let _open = local.hold("full", &concurrency, 1, None).unwrap();
    let (holds, wait) = ([("k", &log, 2), ("full", &concurrency, 1)], Duration::from_secs(5));
    assert!(!limiter.hold_all_until_ready(holds, TTL, wait).await.unwrap().allowed());
    assert_eq!(local.peek("k", &log, 0).remaining, 7, "one denial of 2 units was recorded");
}

/// A future that is dropped at any poll holds nothing afterwards.
#[tokio::test(start_paused = true)]
async fn hold_until_ready_cancelled_at_every_await_holds_nothing() {
    let concurrency = policy("concurrency:10/30s");
    for polls in 0..40 {
        let Remote { limiter, local, .. } = remote(1, 2);
        let full = limiter.hold("k", &concurrency, 10, None).await.unwrap().into_permit().unwrap();
        let mut attempts = 0;
        {
            let wait = Duration::from_secs(60);
            let mut waiting = pin!(limiter.hold_until_ready("k", &concurrency, 4, None, wait));
            let mut full = Some(full);
            while attempts < polls {
                attempts += 1;
                let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
                if attempts == polls / 2 {
                    full = None;
                }
                if polled.is_ready() {
                    break;
                }
                pass(Duration::from_millis(3)).await;
            }
            drop(full);
        }
        background().await;
        assert_eq!(in_use(&local, &concurrency), 0, "after {polls} polls");
    }
}

#[test]
fn blocking_hold_until_ready_of_many_threads_never_exceeds_the_limit() {
    let limiter = LocalLimiter::new();
    let concurrency = policy("concurrency:2/30s");
    let in_flight = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let wait = Duration::from_secs(60);
                    let held = limiter.blocking_hold_until_ready("k", &concurrency, 1, None, wait);
                    let permit = held.unwrap().into_permit().expect("the hold fits in time");
                    let others = in_flight.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert!(others < 2, "{others}");
                    in_flight.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
}
