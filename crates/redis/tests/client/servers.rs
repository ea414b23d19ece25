//! Stores that are patient, and tests that wait without holding a thread.

use std::time::Duration;

use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Server, TEST_TIMEOUT, now};

/// A store with time to spare, for tests that are not about time.
pub(crate) async fn store_of(server: &Server) -> RedisStore {
    connect(&server.url()).await
}

/// [`store_of`] by the URL.
pub(crate) async fn connect(url: &str) -> RedisStore {
    RedisStore::connect_with(url, patient()).await.unwrap()
}

/// A deadline that a busy machine keeps.
pub(crate) fn patient() -> Options {
    let mut options = Options::default();
    options.deadline = Duration::from_secs(5);
    options.connect_timeout = Duration::from_secs(5);
    options
}

/// Repeats `is_so` until it is true, and returns how long that took: `sluicegate_testing::eventually_true`
/// without holding a thread.
pub(crate) async fn eventually_true(what: &str, is_so: impl AsyncFnMut() -> bool) -> Duration {
    eventually_within(TEST_TIMEOUT, what, is_so).await
}

/// Repeats `is_so` until it is true, for up to `timeout`.
pub(crate) async fn eventually_within(
    timeout: Duration,
    what: &str,
    mut is_so: impl AsyncFnMut() -> bool,
) -> Duration {
    let start = now();
    while !is_so().await {
        assert!(start.elapsed() < timeout, "not within {timeout:?}: {what}");
        pass(Duration::from_millis(1)).await;
    }
    start.elapsed()
}

/// Lets time pass that is the subject of a test: between requests, in a proxy, until a limit admits again. To wait
/// for a condition, use [`eventually_true`].
pub(crate) async fn pass(span: Duration) {
    let mut interval = tokio::time::interval(span.max(Duration::from_nanos(1)));
    interval.tick().await;
    interval.tick().await;
}
