//! Policies made by calls instead of from text: an option that an algorithm does not have does not compile.

use std::time::Duration;

use super::Policy;
use crate::{
    algorithm::{
        Align, FixedWindow, Gcra, GcraName, IntervalBucket, Limit, SlidingCounter, SlidingLog,
        Window,
    },
    calendar::CalendarUnit,
    parameters::LimitError,
    text::{MAX_LIMITS, PolicyError},
};

/// A limit of `N` units that lacks its period.
#[must_use]
#[derive(Clone, Debug)]
pub struct WithoutPeriod<O> {
    limit: u32,
    options: O,
}

impl<O> WithoutPeriod<O> {
    const fn new(limit: u32, options: O) -> Self {
        Self { limit, options }
    }

    /// Sets the period: whole microseconds, 1 ms to 366 days.
    pub fn per(self, period: Duration) -> LimitBuilder<O> {
        LimitBuilder { limit: self.limit, period, options: self.options }
    }
}

impl WithoutPeriod<FixedWindowOptions> {
    /// Sets a period of the calendar, from one local midnight to a later one; in UTC, unless
    /// [`time_zone`](LimitBuilder::time_zone) sets another zone.
    pub fn per_calendar(self, unit: CalendarUnit) -> LimitBuilder<CalendarWindowOptions> {
        let options = CalendarWindowOptions { unit, zone: "UTC".to_owned(), count_all: false };
        LimitBuilder { limit: self.limit, period: Duration::ZERO, options }
    }
}

/// A limit with its period and options `O`. [`build`](Self::build) checks all values.
///
/// Each algorithm has its own options. A queue, for example, cannot lend units:
///
/// ```compile_fail,E0599
/// use std::time::Duration;
/// use sluicegate_core::Policy;
///
/// let queue = Policy::leaky_queue(30).per(Duration::from_secs(60)).borrow();
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct LimitBuilder<O> {
    limit: u32,
    period: Duration,
    options: O,
}

/// Options of `gcra`.
#[derive(Clone, Debug)]
pub struct GcraOptions(Bucket);

/// Options of `token-bucket`.
#[derive(Clone, Debug)]
pub struct TokenBucketOptions(Bucket, Refill);

/// Options of `leaky-bucket`.
#[derive(Clone, Debug)]
pub struct LeakyBucketOptions(Bucket);

/// Options of `leaky-queue`.
#[derive(Clone, Debug)]
pub struct LeakyQueueOptions(Bucket);

#[derive(Clone, Debug)]
struct Bucket {
    size: Option<u32>,
    borrow: bool,
}

impl Bucket {
    const DEFAULT: Self = Self { size: None, borrow: false };
}

#[derive(Clone, Copy, Debug)]
enum Refill {
    Continuous,
    Interval,
}

/// Options of `fixed-window` with a period of constant length.
#[derive(Clone, Debug)]
pub struct FixedWindowOptions {
    align: Align,
    count_all: bool,
}

/// Options of `fixed-window` with a period of the calendar.
#[derive(Clone, Debug)]
pub struct CalendarWindowOptions {
    unit: CalendarUnit,
    zone: String,
    count_all: bool,
}

/// Options of `sliding-log`.
#[derive(Clone, Debug)]
pub struct SlidingLogOptions {
    count_all: bool,
    keep: Option<Duration>,
    keep_max: Option<u32>,
}

/// Options of `sliding-counter`.
#[derive(Clone, Debug)]
pub struct SlidingCounterOptions {
    count_all: bool,
}

impl Policy {
    /// `limit` units per period by the generic cell rate algorithm: one unit each `period / limit`, up to
    /// [`burst`](LimitBuilder::burst) at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let policy = Policy::gcra(30).per(Duration::from_secs(60)).burst(16).build()?;
    /// assert_eq!(policy.to_string(), "gcra:30/1m:burst=16");
    ///
    /// let error = Policy::gcra(30).per(Duration::ZERO).build().unwrap_err();
    /// assert_eq!(error.to_string(), "invalid period `0s`: expected 1ms to 366d");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn gcra(limit: u32) -> WithoutPeriod<GcraOptions> {
        WithoutPeriod::new(limit, GcraOptions(Bucket::DEFAULT))
    }

    /// A bucket that holds [`burst`](LimitBuilder::burst) tokens when full, refilled with `limit` tokens per period.
    pub const fn token_bucket(limit: u32) -> WithoutPeriod<TokenBucketOptions> {
        WithoutPeriod::new(limit, TokenBucketOptions(Bucket::DEFAULT, Refill::Continuous))
    }

    /// A bucket that holds [`capacity`](LimitBuilder::capacity) units and leaks `limit` units per period. It delays
    /// no request.
    pub const fn leaky_bucket(limit: u32) -> WithoutPeriod<LeakyBucketOptions> {
        WithoutPeriod::new(limit, LeakyBucketOptions(Bucket::DEFAULT))
    }

    /// A queue of [`capacity`](LimitBuilder::capacity) units that releases one unit each `period / limit`.
    pub const fn leaky_queue(limit: u32) -> WithoutPeriod<LeakyQueueOptions> {
        WithoutPeriod::new(limit, LeakyQueueOptions(Bucket::DEFAULT))
    }

    /// `limit` units per window. A window starts with its first request, unless
    /// [`align_to_clock`](LimitBuilder::align_to_clock) or [`per_calendar`](WithoutPeriod::per_calendar) is called.
    ///
    /// ```
    /// use sluicegate_core::{CalendarUnit, Policy};
    ///
    /// let daily = Policy::fixed_window(500).per_calendar(CalendarUnit::Day).time_zone("Europe/Paris");
    /// assert_eq!(daily.build()?.to_string(), "fixed-window:500/day:tz=Europe/Paris");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn fixed_window(limit: u32) -> WithoutPeriod<FixedWindowOptions> {
        WithoutPeriod::new(limit, FixedWindowOptions { align: Align::First, count_all: false })
    }

    /// `limit` units in any interval of one period, exactly: the time of each request is stored.
    pub const fn sliding_log(limit: u32) -> WithoutPeriod<SlidingLogOptions> {
        let options = SlidingLogOptions { count_all: false, keep: None, keep_max: None };
        WithoutPeriod::new(limit, options)
    }

    /// `limit` units in a sliding window of one period, estimated from two counts.
    pub const fn sliding_counter(limit: u32) -> WithoutPeriod<SlidingCounterOptions> {
        WithoutPeriod::new(limit, SlidingCounterOptions { count_all: false })
    }
}

impl LimitBuilder<GcraOptions> {
    /// Sets the units that an idle key may take at once; `limit` if not set.
    pub fn burst(mut self, units: u32) -> Self {
        self.options.0.size = Some(units);
        self
    }

    /// Allows a request of any cost as soon as one unit is available; later requests wait until the rest is repaid.
    pub fn borrow(mut self) -> Self {
        self.options.0.borrow = true;
        self
    }
}

impl LimitBuilder<TokenBucketOptions> {
    /// Sets the tokens in a full bucket; `limit` if not set.
    pub fn burst(mut self, tokens: u32) -> Self {
        self.options.0.size = Some(tokens);
        self
    }

    /// Allows a request of any cost as soon as one token is available; later requests wait until the rest is repaid.
    pub fn borrow(mut self) -> Self {
        self.options.0.borrow = true;
        self
    }

    /// Adds `limit` tokens at the end of each period, instead of one token each `period / limit`.
    pub fn refill_by_interval(mut self) -> Self {
        self.options.1 = Refill::Interval;
        self
    }
}

impl LimitBuilder<LeakyBucketOptions> {
    /// Sets the units in a full bucket; `limit` if not set.
    pub fn capacity(mut self, units: u32) -> Self {
        self.options.0.size = Some(units);
        self
    }

    /// Allows a request of any cost as soon as one unit is available; later requests wait until the rest is repaid.
    pub fn borrow(mut self) -> Self {
        self.options.0.borrow = true;
        self
    }
}

impl LimitBuilder<LeakyQueueOptions> {
    /// Sets the units in a full queue; `limit` if not set.
    pub fn capacity(mut self, units: u32) -> Self {
        self.options.0.size = Some(units);
        self
    }
}

impl LimitBuilder<FixedWindowOptions> {
    /// Starts windows at multiples of the period since the Unix epoch, instead of with the first request.
    pub fn align_to_clock(mut self) -> Self {
        self.options.align = Align::Clock;
        self
    }

    /// Counts denied requests, too.
    pub fn count_all(mut self) -> Self {
        self.options.count_all = true;
        self
    }
}

impl LimitBuilder<CalendarWindowOptions> {
    /// Sets the time zone of midnight: a name of the IANA database, such as `Asia/Shanghai`.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.options.zone = name.into();
        self
    }

    /// Counts denied requests, too.
    pub fn count_all(mut self) -> Self {
        self.options.count_all = true;
        self
    }
}

impl LimitBuilder<SlidingLogOptions> {
    /// Records denied requests, too.
    pub fn count_all(mut self) -> Self {
        self.options.count_all = true;
        self
    }

    /// Keeps requests for `time` (1 ms to 366 days), for a policy with a longer period that may replace this one.
    pub fn keep(mut self, time: Duration) -> Self {
        self.options.keep = Some(time);
        self
    }

    /// Sets the maximum number of units (1 to 2^20) that [`keep`](Self::keep) stores; `limit * keep / period` if not
    /// set.
    pub fn keep_max(mut self, units: u32) -> Self {
        self.options.keep_max = Some(units);
        self
    }
}

impl LimitBuilder<SlidingCounterOptions> {
    /// Counts denied requests, too.
    pub fn count_all(mut self) -> Self {
        self.options.count_all = true;
        self
    }
}

impl<O> LimitBuilder<O>
where
    PolicyBuilder: From<Self>,
{
    /// Adds a limit on the same key: a request passes if every limit allows it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::{CalendarUnit, Policy};
    ///
    /// let policy = Policy::gcra(10)
    ///     .per(Duration::from_secs(1))
    ///     .and(Policy::fixed_window(10_000).per_calendar(CalendarUnit::Month))
    ///     .build()?;
    /// assert_eq!(policy.to_string(), "gcra:10/1s,fixed-window:10000/month");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub fn and(self, limit: impl Into<PolicyBuilder>) -> PolicyBuilder {
        PolicyBuilder::from(self).and(limit)
    }

    /// The policy of this one limit.
    ///
    /// # Errors
    /// [`PolicyError`] for a value outside its domain, with the text that the parser of policies has for it.
    pub fn build(self) -> Result<Policy, PolicyError> {
        PolicyBuilder::from(self).build()
    }
}

/// Several limits on the same key. [`build`](Self::build) checks all values.
#[must_use]
#[derive(Clone, Debug)]
pub struct PolicyBuilder {
    limits: Vec<Result<Limit, LimitError>>,
}

impl PolicyBuilder {
    fn one<L: Into<Limit>>(limit: Result<L, LimitError>) -> Self {
        Self { limits: vec![limit.map(Into::into)] }
    }

    fn gcra(name: GcraName, limit: u32, period: Duration, bucket: &Bucket) -> Self {
        Self::one(Gcra::new(name, limit, period, bucket.size, bucket.borrow))
    }

    /// Adds a limit, up to 8 in all.
    pub fn and(mut self, limit: impl Into<Self>) -> Self {
        self.limits.append(&mut limit.into().limits);
        self
    }

    /// The policy.
    ///
    /// # Errors
    /// [`PolicyError`] for a value outside its domain or more than 8 limits, with the text that the parser of policies
    /// has for it.
    pub fn build(self) -> Result<Policy, PolicyError> {
        let count = self.limits.len();
        let mut limits = Vec::with_capacity(count);
        for (index, limit) in self.limits.into_iter().take(MAX_LIMITS).enumerate() {
            limits.push(limit.map_err(|error| {
                let error = PolicyError::new(error.to_string(), index + 1, 0);
                if count > 1 { error.among_several() } else { error }
            })?);
        }
        if count > MAX_LIMITS { Err(PolicyError::count(count)) } else { Policy::try_from(limits) }
    }
}

impl From<LimitBuilder<GcraOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<GcraOptions>) -> Self {
        let LimitBuilder { limit, period, options: GcraOptions(bucket) } = builder;
        Self::gcra(GcraName::Gcra, limit, period, &bucket)
    }
}

impl From<LimitBuilder<TokenBucketOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<TokenBucketOptions>) -> Self {
        let LimitBuilder { limit, period, options: TokenBucketOptions(bucket, refill) } = builder;
        match refill {
            Refill::Continuous => Self::gcra(GcraName::TokenBucket, limit, period, &bucket),
            Refill::Interval => {
                Self::one(IntervalBucket::new(limit, period, bucket.size, bucket.borrow))
            }
        }
    }
}

impl From<LimitBuilder<LeakyBucketOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<LeakyBucketOptions>) -> Self {
        let LimitBuilder { limit, period, options: LeakyBucketOptions(bucket) } = builder;
        Self::gcra(GcraName::LeakyBucket, limit, period, &bucket)
    }
}

impl From<LimitBuilder<LeakyQueueOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<LeakyQueueOptions>) -> Self {
        let LimitBuilder { limit, period, options: LeakyQueueOptions(bucket) } = builder;
        Self::gcra(GcraName::LeakyQueue, limit, period, &bucket)
    }
}

impl From<LimitBuilder<FixedWindowOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<FixedWindowOptions>) -> Self {
        let LimitBuilder { limit, period, options: FixedWindowOptions { align, count_all } } =
            builder;
        Self::one(FixedWindow::new(limit, &Window::Span { period, align }, count_all))
    }
}

impl From<LimitBuilder<CalendarWindowOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<CalendarWindowOptions>) -> Self {
        let CalendarWindowOptions { unit, zone, count_all } = builder.options;
        Self::one(FixedWindow::new(builder.limit, &Window::Calendar { unit, zone }, count_all))
    }
}

impl From<LimitBuilder<SlidingLogOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<SlidingLogOptions>) -> Self {
        let SlidingLogOptions { count_all, keep, keep_max } = builder.options;
        Self::one(SlidingLog::new(builder.limit, builder.period, count_all, keep, keep_max))
    }
}

impl From<LimitBuilder<SlidingCounterOptions>> for PolicyBuilder {
    fn from(builder: LimitBuilder<SlidingCounterOptions>) -> Self {
        let LimitBuilder { limit, period, options: SlidingCounterOptions { count_all } } = builder;
        Self::one(SlidingCounter::new(limit, period, count_all))
    }
}
