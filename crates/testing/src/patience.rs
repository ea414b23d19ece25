use std::time::{Duration, Instant};

/// What does not come about fails its test after so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The clock, for what has to do with processes: a test of time takes its time from elsewhere.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "what never comes about must fail its test")]
pub fn now() -> Instant {
    Instant::now()
}

/// Asks again and again until it is so, and how long that took.
///
/// # Panics
/// It took too long.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::yield_now();
    }
    start.elapsed()
}

/// Leaves the processor to others for a moment: between requests, or while time passes that a test is
/// about. Never to wait for something, which is asked for ([`until`]).
pub fn rest(span: Duration) {
    std::thread::park_timeout(span);
}

/// A size from the environment, for `cargo xtask chaos` and `soak`.
///
/// # Panics
/// It is there, but no number.
#[must_use]
pub fn size(name: &str, usual: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(usual, |given| given.parse().unwrap_or_else(|_| panic!("{name}={given}")))
}
