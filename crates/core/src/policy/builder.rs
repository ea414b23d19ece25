//! Policies made by calls instead of from text: an option that an algorithm does not have does not compile.

use std::{marker::PhantomData, time::Duration};

use super::Policy;
use crate::{
    algorithm::{
        Align, Concurrency, FixedWindow, Gcra, GcraName, IntervalBucket, Limit, SlidingCounter,
        SlidingLog, Window,
    },
    calendar::CalendarUnit,
    parameters::LimitError,
    text::{MAX_LIMITS, PolicyError},
};

/// A limit of `N` units that lacks its period.
#[must_use]
#[derive(Clone, Debug)]
pub struct WithoutPeriod<K>(LimitBuilder<K>);

impl<K> WithoutPeriod<K> {
    const fn new(limit: u32) -> Self {
        Self(LimitBuilder { options: LimitOptions::new(limit), kind: PhantomData })
    }

    /// Sets the period: whole microseconds, 1 ms to 366 days. [`build`](LimitBuilder::build) checks it.
    pub fn per(self, period: Duration) -> LimitBuilder<K> {
        self.0.with(|it| it.period = period)
    }
}

impl WithoutPeriod<FixedWindowOptions> {
    /// Sets a period of the calendar, from one local midnight to a later one; in UTC, unless
    /// [`time_zone`](LimitBuilder::time_zone) sets another zone.
    pub fn per_calendar(self, unit: CalendarUnit) -> LimitBuilder<CalendarWindowOptions> {
        let options = LimitOptions { unit, ..self.0.options };
        LimitBuilder { options, kind: PhantomData }
    }
}

/// A limit with its period and options, which are those of the algorithm `K`. [`build`](Self::build) checks all values.
///
/// Each algorithm has its own options. A queue, for example, cannot lend units:
///
/// ```compile_fail,E0599
/// use std::time::Duration;
/// use sluicegate_core::Policy;
///
/// let queue = Policy::leaky_queue(30).per(Duration::from_mins(1)).borrow();
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct LimitBuilder<K> {
    options: LimitOptions,
    kind: PhantomData<K>,
}

/// The options of all algorithms; each reads its own.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LimitOptions {
    limit: u32,
    period: Duration,
    size: Option<u32>,
    borrow: bool,
    refill_by_interval: bool,
    align: Align,
    unit: CalendarUnit,
    /// UTC if not set.
    zone: Option<String>,
    count_all: bool,
    keep: Option<Duration>,
    keep_max: Option<u32>,
}

impl LimitOptions {
    const fn new(limit: u32) -> Self {
        Self {
            limit,
            period: Duration::ZERO,
            size: None,
            borrow: false,
            refill_by_interval: false,
            align: Align::First,
            unit: CalendarUnit::Day,
            zone: None,
            count_all: false,
            keep: None,
            keep_max: None,
        }
    }

    fn gcra(&self, name: GcraName) -> Result<Limit, LimitError> {
        Gcra::new(name, self.limit, self.period, self.size, self.borrow).map(Limit::from)
    }

    fn token_bucket(&self) -> Result<Limit, LimitError> {
        if !self.refill_by_interval {
            return self.gcra(GcraName::TokenBucket);
        }
        IntervalBucket::new(self.limit, self.period, self.size, self.borrow).map(Limit::from)
    }

    fn window(&self, window: &Window) -> Result<Limit, LimitError> {
        FixedWindow::new(self.limit, window, self.count_all).map(Limit::from)
    }

    fn calendar_window(&self) -> Result<Limit, LimitError> {
        let zone = self.zone.clone().unwrap_or_else(|| "UTC".to_owned());
        self.window(&Window::Calendar { unit: self.unit, zone })
    }

    fn sliding_log(&self) -> Result<Limit, LimitError> {
        let Self { limit, period, count_all, keep, keep_max, .. } = *self;
        SlidingLog::new(limit, period, count_all, keep, keep_max).map(Limit::from)
    }
}

/// An algorithm that a builder makes a limit of.
pub trait LimitKind {
    #[doc(hidden)]
    fn limit(options: &LimitOptions) -> Result<Limit, LimitError>;
}

/// An algorithm with the option `burst`.
pub trait HasBurst: LimitKind {}

/// An algorithm with the option `capacity`.
pub trait HasCapacity: LimitKind {}

/// An algorithm with the option `borrow`.
pub trait HasBorrow: LimitKind {}

/// An algorithm with the option `count`.
pub trait HasCount: LimitKind {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $($has:ident)* => $limit:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name;

        impl LimitKind for $name {
            fn limit(options: &LimitOptions) -> Result<Limit, LimitError> {
                let limit: fn(&LimitOptions) -> Result<Limit, LimitError> = $limit;
                limit(options)
            }
        }

        $(impl $has for $name {})*
    )*};
}

kinds! {
    /// `gcra`.
    GcraOptions: HasBurst HasBorrow => |it| it.gcra(GcraName::Gcra);
    /// `token-bucket`.
    TokenBucketOptions: HasBurst HasBorrow => LimitOptions::token_bucket;
    /// `leaky-bucket`.
    LeakyBucketOptions: HasCapacity HasBorrow => |it| it.gcra(GcraName::LeakyBucket);
    /// `leaky-queue`.
    LeakyQueueOptions: HasCapacity => |it| it.gcra(GcraName::LeakyQueue);
    /// `fixed-window` with a period of constant length.
    FixedWindowOptions: HasCount => |it| it.window(&Window::Span { period: it.period, align: it.align });
    /// `fixed-window` with a period of the calendar.
    CalendarWindowOptions: HasCount => LimitOptions::calendar_window;
    /// `sliding-log`.
    SlidingLogOptions: HasCount => LimitOptions::sliding_log;
    /// `sliding-counter`.
    SlidingCounterOptions: HasCount => |it| SlidingCounter::new(it.limit, it.period, it.count_all).map(Limit::from);
    /// `concurrency`.
    ConcurrencyOptions: => |it| Concurrency::new(it.limit, it.period).map(Limit::from);
}

/// Builders, one for each algorithm. `limit` is 1 to 4 294 967 295 units, unless the algorithm says otherwise.
impl Policy {
    /// `limit` units per period by the generic cell rate algorithm: one unit each `period / limit`, up to
    /// [`burst`](LimitBuilder::burst) at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let policy = Policy::gcra(30).per(Duration::from_mins(1)).burst(16).build()?;
    /// assert_eq!(policy.to_string(), "gcra:30/1m:burst=16");
    ///
    /// let error = Policy::gcra(30).per(Duration::ZERO).build().unwrap_err();
    /// assert_eq!(error.to_string(), "invalid period `0s`: expected 1ms to 366d");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn gcra(limit: u32) -> WithoutPeriod<GcraOptions> {
        WithoutPeriod::new(limit)
    }

    /// A bucket that holds [`burst`](LimitBuilder::burst) tokens when full, refilled with `limit` tokens
    /// per period.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let policy = Policy::token_bucket(100).per(Duration::from_hours(1)).refill_by_interval().build()?;
    /// assert_eq!(policy.to_string(), "token-bucket:100/1h:refill=interval");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn token_bucket(limit: u32) -> WithoutPeriod<TokenBucketOptions> {
        WithoutPeriod::new(limit)
    }

    /// A bucket that holds [`capacity`](LimitBuilder::capacity) units and leaks `limit` units per period.
    /// It delays no request.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let policy = Policy::leaky_bucket(120).per(Duration::from_mins(1)).capacity(20).build()?;
    /// assert_eq!(policy.to_string(), "leaky-bucket:120/1m:capacity=20");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn leaky_bucket(limit: u32) -> WithoutPeriod<LeakyBucketOptions> {
        WithoutPeriod::new(limit)
    }

    /// A queue of [`capacity`](LimitBuilder::capacity) units that releases one unit each
    /// `period / limit`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let policy = Policy::leaky_queue(5).per(Duration::from_secs(1)).capacity(20).build()?;
    /// assert_eq!(policy.to_string(), "leaky-queue:5/1s:capacity=20");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn leaky_queue(limit: u32) -> WithoutPeriod<LeakyQueueOptions> {
        WithoutPeriod::new(limit)
    }

    /// `limit` units per window. A window starts with its first request, unless
    /// [`align_to_clock`](LimitBuilder::align_to_clock) or
    /// [`per_calendar`](WithoutPeriod::per_calendar) is called.
    ///
    /// ```
    /// use sluicegate_core::{CalendarUnit, Policy};
    ///
    /// let daily = Policy::fixed_window(500).per_calendar(CalendarUnit::Day).time_zone("Europe/Paris");
    /// assert_eq!(daily.build()?.to_string(), "fixed-window:500/day:tz=Europe/Paris");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn fixed_window(limit: u32) -> WithoutPeriod<FixedWindowOptions> {
        WithoutPeriod::new(limit)
    }

    /// `limit` units in any interval of one period, exactly: the time of each request is stored.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let policy = Policy::sliding_log(30).per(Duration::from_mins(1)).count_all().build()?;
    /// assert_eq!(policy.to_string(), "sliding-log:30/1m:count=all");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn sliding_log(limit: u32) -> WithoutPeriod<SlidingLogOptions> {
        WithoutPeriod::new(limit)
    }

    /// `limit` units in a sliding window of one period, estimated from two counts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let policy = Policy::sliding_counter(1000).per(Duration::from_hours(1)).build()?;
    /// assert_eq!(policy.to_string(), "sliding-counter:1000/1h");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn sliding_counter(limit: u32) -> WithoutPeriod<SlidingCounterOptions> {
        WithoutPeriod::new(limit)
    }

    /// `limit` units (1 to 65 536) that are held at one time, such as requests in flight. The period is the longest
    /// lifetime of a hold that is not renewed, and the default one. Units are taken by holds only
    /// ([`Operation::Hold`](crate::Operation::Hold)).
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_core::Policy;
    ///
    /// let in_flight = Policy::concurrency(20).per(Duration::from_secs(30));
    /// let policy = in_flight.and(Policy::gcra(500).per(Duration::from_mins(1))).build()?;
    /// assert_eq!(policy.to_string(), "concurrency:20/30s,gcra:500/1m");
    /// # Ok::<(), sluicegate_core::PolicyError>(())
    /// ```
    pub const fn concurrency(limit: u32) -> WithoutPeriod<ConcurrencyOptions> {
        WithoutPeriod::new(limit)
    }
}

impl<K> LimitBuilder<K> {
    fn with(mut self, set: impl FnOnce(&mut LimitOptions)) -> Self {
        set(&mut self.options);
        self
    }
}

impl<K: HasBurst> LimitBuilder<K> {
    /// Sets the units that an idle key may take at once, or the tokens in a full bucket; `limit` if not set.
    pub fn burst(self, units: u32) -> Self {
        self.with(|it| it.size = Some(units))
    }
}

impl<K: HasCapacity> LimitBuilder<K> {
    /// Sets the units in a full bucket or queue; `limit` if not set.
    pub fn capacity(self, units: u32) -> Self {
        self.with(|it| it.size = Some(units))
    }
}

impl<K: HasBorrow> LimitBuilder<K> {
    /// Allows a request of any cost as soon as one unit is available; later requests wait until the rest is repaid.
    pub fn borrow(self) -> Self {
        self.with(|it| it.borrow = true)
    }
}

impl<K: HasCount> LimitBuilder<K> {
    /// Counts denied requests, too.
    pub fn count_all(self) -> Self {
        self.with(|it| it.count_all = true)
    }
}

impl LimitBuilder<TokenBucketOptions> {
    /// Adds `limit` tokens at the end of each period, instead of one token each `period / limit`.
    pub fn refill_by_interval(self) -> Self {
        self.with(|it| it.refill_by_interval = true)
    }
}

impl LimitBuilder<FixedWindowOptions> {
    /// Starts windows at multiples of the period since the Unix epoch, instead of with the first request.
    pub fn align_to_clock(self) -> Self {
        self.with(|it| it.align = Align::Clock)
    }
}

impl LimitBuilder<CalendarWindowOptions> {
    /// Sets the time zone of midnight: a name of the IANA database, such as `Asia/Shanghai`.
    pub fn time_zone(self, name: impl Into<String>) -> Self {
        self.with(|it| it.zone = Some(name.into()))
    }
}

impl LimitBuilder<SlidingLogOptions> {
    /// Keeps requests for `time` (1 ms to 366 days), for a policy with a longer period that may replace this one.
    pub fn keep(self, time: Duration) -> Self {
        self.with(|it| it.keep = Some(time))
    }

    /// Sets the maximum number of units (1 to 2^20) that [`keep`](Self::keep) stores; `limit * keep / period` if not
    /// set.
    pub fn keep_max(self, units: u32) -> Self {
        self.with(|it| it.keep_max = Some(units))
    }
}

impl<K: LimitKind> LimitBuilder<K> {
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

impl<K: LimitKind> From<LimitBuilder<K>> for PolicyBuilder {
    fn from(builder: LimitBuilder<K>) -> Self {
        Self::of(K::limit(&builder.options))
    }
}

// Several limits made by calls.

/// Several limits on the same key. [`build`](Self::build) checks all values.
#[must_use]
#[derive(Clone, Debug)]
pub struct PolicyBuilder {
    limits: Vec<Result<Limit, LimitError>>,
}

impl PolicyBuilder {
    /// One limit, or its error.
    pub(super) fn of(limit: Result<Limit, LimitError>) -> Self {
        Self { limits: vec![limit] }
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
