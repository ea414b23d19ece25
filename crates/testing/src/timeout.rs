use std::{
    fmt::Debug,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Time after which a wait fails its test.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The system's clock, for deadlines on processes. Tests about time use a manual clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a wait without a deadline hangs its test")]
pub fn now() -> Instant {
    Instant::now()
}

/// Pause between two attempts of [`eventually`].
const PAUSE: Duration = Duration::from_millis(1);

/// Repeats `attempt` until it succeeds, and returns its value. A failed attempt returns its observation.
///
/// # Panics
/// If no attempt succeeds within [`TEST_TIMEOUT`]. The message has `what` and the last observation.
///
/// ```
/// let mut attempts = 0;
/// let third = sluicegate_testing::eventually("a third attempt", || {
///     attempts += 1;
///     if attempts == 3 { Ok(attempts) } else { Err(attempts) }
/// });
/// assert_eq!(third, 3);
/// ```
pub fn eventually<T, S: Debug>(what: &str, attempt: impl FnMut() -> Result<T, S>) -> T {
    eventually_within(TEST_TIMEOUT, what, attempt)
}

/// [`eventually`] with another time limit, for waits that are known to be long.
///
/// # Panics
/// As [`eventually`].
pub fn eventually_within<T, S: Debug>(
    timeout: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, S>,
) -> T {
    let start = now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() >= timeout => {
                panic!("not within {timeout:?}: {what}; last seen: {seen:?}")
            }
            Err(_) => pause(PAUSE),
        }
    }
}

/// Repeats `condition` until it is true, and returns the time that this took: [`eventually`] without a value or
/// observations.
///
/// # Panics
/// If it is not true within [`TEST_TIMEOUT`].
pub fn eventually_true(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = now();
    eventually(what, || if condition() { Ok(()) } else { Err("false") });
    start.elapsed()
}

/// Sets a flag when it is dropped. It ends the threads of a scope even when the test fails, because a
/// scope waits for its threads before it lets a panic through.
#[derive(Debug)]
pub struct SetOnDrop<'a>(
    /// The flag.
    pub &'a AtomicBool,
);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Pauses the thread: between requests, or while the time passes that a test is about. To wait for a condition, use
/// [`eventually_true`].
pub fn pause(span: Duration) {
    std::thread::park_timeout(span);
}

/// A size from the environment, for `cargo xtask chaos` and `soak`.
///
/// # Panics
/// If it is set, but not to a number.
#[must_use]
pub fn size(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |given| given.parse().unwrap_or_else(|_| panic!("{name}={given}")))
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn eventually_timeout_fails_with_last_observation() {
        let short = Duration::from_millis(5);
        let failed = catch_unwind(|| {
            let mut attempts = 0;
            eventually_within(short, "the moon", || {
                attempts += 1;
                if attempts < 0 { Ok(()) } else { Err(format!("{} clouds", attempts.min(2))) }
            });
        });
        let message = *failed.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, "not within 5ms: the moon; last seen: \"2 clouds\"");
    }
}
