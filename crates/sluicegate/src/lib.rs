//! Exact rate limits, in this process or shared by many through Redis or Valkey.
//!
//! One limit for the whole program:
//!
//! ```
//! use std::time::Duration;
//! use sluicegate::{Limiter, Policy};
//!
//! let limiter = Limiter::single(Policy::gcra(30).per(Duration::from_mins(1)).burst(16).build()?);
//! assert!(limiter.check().allowed());
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! A limit for each key, with the policy as text or as calls:
//!
//! ```
//! use sluicegate::{LocalLimiter, PreparedPolicy, Retry};
//!
//! let limiter = LocalLimiter::new();
//! let policy: PreparedPolicy = "fixed-window:2/1h".parse()?;
//!
//! let answer = limiter.take("user7", &policy, 1);
//! assert!(answer.allowed());
//! assert_eq!(answer.remaining, 1);
//!
//! // A denial is an answer, never an error.
//! let denied = limiter.take("user7", &policy, 2);
//! assert!(matches!(denied.retry(), Some(Retry::After(wait)) if wait.as_secs() < 3600));
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! Several limits on the same key, decided together:
//!
//! ```
//! use std::time::Duration;
//! use sluicegate::{CalendarUnit, Policy};
//!
//! let policy = Policy::gcra(10)
//!     .per(Duration::from_secs(1))
//!     .and(Policy::fixed_window(500).per_calendar(CalendarUnit::Day).time_zone("Europe/Paris"))
//!     .build()?;
//! assert_eq!(policy, "gcra:10/1s,fixed-window:500/day:tz=Europe/Paris".parse()?);
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! Waiting until a request passes, on a task (`until_ready`) or on a thread (`blocking_until_ready`):
//!
//! ```
//! use std::time::Duration;
//! use sluicegate::{Limiter, Policy};
//!
//! let limiter = Limiter::single("leaky-queue:100/1s".parse::<Policy>()?);
//! for _ in 0..3 {
//!     assert!(limiter.blocking_until_ready(1, Duration::from_mins(1)).allowed());
//!     println!("request"); // 10 ms apart
//! }
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! Testing without sleeping:
//!
//! ```
//! use std::time::Duration;
//! use sluicegate::{ManualClock, Policy, SingleLimiter};
//!
//! let clock = ManualClock::default();
//! let limiter = SingleLimiter::with_clock("gcra:1/1m".parse::<Policy>()?, clock.clone());
//! assert!(limiter.check().allowed());
//! assert!(!limiter.check().allowed());
//! clock.advance(Duration::from_mins(1));
//! assert!(limiter.check().allowed());
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! Limits that several processes share need the crate `sluicegate-redis`, and `.await?`. The calls on keys are the same:
//!
//! ```
//! use sluicegate::{Limiter, PreparedPolicy};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let limiter = Limiter::in_memory(); // or Limiter::new(RedisStore::new("redis://127.0.0.1/", Options::default())?)
//! let policy: PreparedPolicy = "gcra:30/60s:burst=16".parse()?;
//! assert_eq!(limiter.take("user7", &policy, 1).await?.remaining, 15);
//! # Ok::<(), sluicegate::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`SingleLimiter`]: one limit without a key.
//! - [`LocalLimiter`]: a limit for each key, in this process, without async. Most of its calls have no error.
//! - [`Limiter`]: a limit for each key in any [`Store`], with async. The module [`store`] has what a store of your own
//!   needs.
//! - [`ManualClock`], [`RuntimeClock`]: clocks for tests.
//! - [`HoldOutcome`], [`Permit`]: units held until they are settled, for requests in flight and costs known only afterwards.
//! - [`Shaper`]: a queue that releases items at the rate of a `leaky-queue`.
//! - [`Policy`]: how much is allowed, as text or by [`builder`]s. [`PreparedPolicy`]: a policy with its settings, such
//!   as the decision while the store is unavailable. Prepare a policy once and keep it.
//! - The crate `sluicegate-tower` has the Tower middleware for axum, tonic and hyper, over any of these.

mod error;
mod hold_outcome;
mod limiter;
mod limiter_holds;
mod local;
mod local_holds;
mod multi_key;
mod permit;
mod runtime_clock;
mod shaper;
mod single;
pub mod store;
mod wait;

pub use error::Error;
pub use hold_outcome::HoldOutcome;
pub use limiter::Limiter;
pub use local::LocalLimiter;
pub use permit::{LocalPermit, Permit};
pub use runtime_clock::RuntimeClock;
pub use shaper::{PushError, Shaper};
pub use single::SingleLimiter;
pub use sluicegate_core::{
    Answer, Applied, AsStore, CalendarUnit, Clock, Counters, Decision, HoldError, KeyedOperation,
    Limit, LimitError, MAX_KEYS_PER_TAKE, ManualClock, OnError, Operation, OperationError, Outcome,
    Policy, PolicyError, PolicySettings, PreparedPolicy, Request, RequestError, Retry, Share,
    Source, StateError, StateFault, Store, StoreError, Timestamp, TimestampError, builder,
};
pub use sluicegate_holds::{Jitter, WaitOptions};
pub use sluicegate_memory::{ClockedStore, MemoryStore, SnapshotError, SystemClock, WhenFull};

/// The program of the README is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// The programs of the page on migration are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/coming-from.md")]
mod coming_from {}
