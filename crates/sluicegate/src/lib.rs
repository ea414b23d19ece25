//! Exact rate limits, in this process or shared through Redis, Valkey or a cluster of them.
//!
//! ```
//! use sluicegate::{Limiter, PreparedPolicy};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let limiter = Limiter::in_memory(); // or Limiter::connect("redis://127.0.0.1/").await?
//! let policy: PreparedPolicy = "gcra:30/60s:burst=16".parse()?;
//!
//! let answer = limiter.take("user7", &policy, 1).await?;
//! assert!(answer.allowed());
//! assert_eq!(answer.remaining, 15);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Limiter`]: take, peek, charge, refund, reserve and reset, in memory or in Redis or Valkey.
//! - [`LocalLimiter`]: the same in this process, without async and without errors.
//! - [`PreparedPolicy`]: a policy with its settings, such as the decision while the store is unavailable.
//! - [`Shaper`]: a queue that releases items at the rate of a `leaky-queue`.
//! - The crate `sluicegate-tower` has the Tower middleware for axum, tonic and hyper, over any of these.
//!
//! A [`Policy`] says how much is allowed: `gcra:30/60s:burst=16`, `sliding-log:1000/1h`,
//! `fixed-window:500/day:tz=Europe/Paris`, or several limits separated by commas. A denial is an answer,
//! never an error.

mod limiter;
mod local;
mod shaper;

pub use limiter::Limiter;
pub use local::LocalLimiter;
pub use shaper::{Full, Shaper};
pub use sluicegate_core::{
    Answer, Applied, Counters, Decision, KeyedOperation, OnError, Operation, Outcome, Policy,
    PolicyError, PreparedPolicy, ReserveError, Retry, Share, Source, Store, StoreError as Error,
};
pub use sluicegate_redis::{Options, RedisStore, TlsOptions};

/// The programs of the page on migration are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/coming-from.md")]
mod coming_from {}

/// The programs of the page on this crate are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
mod library {}
