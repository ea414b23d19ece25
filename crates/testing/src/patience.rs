use std::{
    fmt::Debug,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// What does not come about fails its test after so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The clock, for what has to do with processes: a test of time takes its time from elsewhere.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "what never comes about must fail its test")]
pub fn now() -> Instant {
    Instant::now()
}

/// Pause between two attempts of [`eventually`].
const PAUSE: Duration = Duration::from_millis(1);

/// Repeats `attempt` until it succeeds, and returns its value. An attempt that fails returns what it
/// saw instead.
///
/// # Panics
/// No attempt succeeded within [`PATIENCE`]: the message has `what`, and what the last attempt saw.
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
    eventually_within(PATIENCE, what, attempt)
}

/// [`eventually`] with a deadline of its own, for what is known to take long.
///
/// # Panics
/// As [`eventually`].
pub fn eventually_within<T, S: Debug>(
    patience: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, S>,
) -> T {
    let start = now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() >= patience => {
                panic!("not within {patience:?}: {what}; last seen: {seen:?}")
            }
            Err(_) => rest(PAUSE),
        }
    }
}

/// Repeats `is_so` until it is true, and returns how long that took: [`eventually`], where an attempt
/// has nothing else to say.
///
/// # Panics
/// It never was within [`PATIENCE`].
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = now();
    eventually(what, || if is_so() { Ok(()) } else { Err("false") });
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

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn eventually_fails_with_what_the_last_attempt_saw() {
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
