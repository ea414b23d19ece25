//! Waiting: carries out the steps of `core`'s `Waiter`, on a task or on a thread.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    thread,
    time::Duration,
};

use sluicegate_core::{
    Answer, Operation, PreparedPolicy, Store, Timestamp,
    wait::{Event, Step, WaitRequest, Waiter},
};
use sluicegate_memory::SystemClock;
use tokio::time::{Instant, sleep};

/// How long to wait, and with which jitter. A [`Duration`] is a timeout without jitter.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{Jitter, LocalLimiter, PreparedPolicy, WaitOptions};
///
/// let (limiter, policy) = (LocalLimiter::new(), "fixed-window:1/20ms".parse::<PreparedPolicy>()?);
/// let wait = WaitOptions::up_to(Duration::from_secs(60)).jitter(Jitter::up_to(Duration::from_millis(5)));
/// for _ in 0..3 {
///     assert!(limiter.blocking_until_ready("report", &policy, 1, wait).allowed());
/// }
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitOptions {
    timeout: Duration,
    jitter: Jitter,
}

impl WaitOptions {
    /// Waits up to `timeout`, without jitter.
    #[must_use]
    pub const fn up_to(timeout: Duration) -> Self {
        Self { timeout, jitter: Jitter::NONE }
    }

    /// Sets the jitter.
    #[must_use]
    pub const fn jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A delay of the jitter.
    pub(crate) fn random_delay(&self) -> Duration {
        self.jitter.delay()
    }
}

/// A timeout without jitter.
impl From<Duration> for WaitOptions {
    fn from(timeout: Duration) -> Self {
        Self::up_to(timeout)
    }
}

/// A random delay that is added to each wait, so that requests that wait for the same moment do not return at once. It
/// never exceeds the timeout, and a request that need not wait is not delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    max: Duration,
    seed: Option<u64>,
}

impl Jitter {
    /// No delay.
    pub const NONE: Self = Self { max: Duration::ZERO, seed: None };

    /// A delay from zero to just below `max`, in whole nanoseconds, all equally likely; at most 584 years.
    #[must_use]
    pub const fn up_to(max: Duration) -> Self {
        Self { max, seed: None }
    }

    /// The same delay each time, determined by `seed`: for tests.
    #[must_use]
    pub const fn seeded(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// A delay.
    #[must_use]
    pub fn delay(&self) -> Duration {
        if self.max.is_zero() {
            return Duration::ZERO;
        }
        // Each `RandomState` has keys of its own, the first ones from the operating system.
        let random = self.seed.map_or_else(|| RandomState::new().build_hasher().finish(), mix);
        let max = u64::try_from(self.max.as_nanos()).unwrap_or(u64::MAX);
        let nanos = (u128::from(max) * u128::from(random)) >> 64;
        Duration::from_nanos(u64::try_from(nanos).expect("it is less than the maximum"))
    }
}

/// A number with the bits of `seed` mixed (the finalizer of SplitMix64).
const fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// One request that waits, in time since its start.
struct Wait {
    waiter: Waiter,
    deadline: Timestamp,
    jitter: Jitter,
}

impl Wait {
    fn new(policy: &PreparedPolicy, cost: u32, options: WaitOptions) -> Self {
        let deadline = Timestamp::EPOCH + options.timeout;
        let request = WaitRequest::take(policy.policy().clone(), cost, deadline);
        Self { waiter: Waiter::alone(request), deadline, jitter: options.jitter }
    }

    /// How long to sleep at `now` for a step that lasts until `until`.
    fn sleep(&self, now: Timestamp, until: Timestamp) -> Duration {
        let latest = self.deadline.max(until);
        (until + self.jitter.delay()).min(latest).since(now)
    }
}

/// Takes `cost` units from `key` in `store` as soon as they are available.
pub(crate) async fn until_ready<S: Store + ?Sized>(
    store: &S,
    key: &[u8],
    policy: &PreparedPolicy,
    cost: u32,
    options: WaitOptions,
) -> Result<Answer, S::Error> {
    let start = Instant::now();
    let now = || Timestamp::EPOCH + start.elapsed();
    let mut wait = Wait::new(policy, cost, options);
    let mut event = Event::Start;
    loop {
        event = match wait.waiter.poll(now(), event) {
            Step::Apply(operation) => Event::Answered(store.apply(key, policy, operation).await?),
            Step::Observe => Event::Observed(None),
            Step::SleepUntil(until) => {
                sleep(wait.sleep(now(), until)).await;
                Event::Woken
            }
            Step::Done(answer) => return Ok(answer),
        };
    }
}

/// Takes `cost` units by `apply` as soon as they are available, and blocks the thread until then.
pub(crate) fn blocking_until_ready(
    policy: &PreparedPolicy,
    cost: u32,
    options: WaitOptions,
    apply: impl Fn(Operation) -> Answer,
) -> Answer {
    let clock = SystemClock::new();
    let now = || Timestamp::EPOCH + clock.uptime();
    let mut wait = Wait::new(policy, cost, options);
    let mut event = Event::Start;
    loop {
        event = match wait.waiter.poll(now(), event) {
            Step::Apply(operation) => Event::Answered(apply(operation)),
            Step::Observe => Event::Observed(None),
            Step::SleepUntil(until) => {
                thread::sleep(wait.sleep(now(), until));
                Event::Woken
            }
            Step::Done(answer) => return answer,
        };
    }
}
