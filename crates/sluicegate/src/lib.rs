//! Exact rate limits, in the process or shared through Redis, Valkey or a cluster of them.
//!
//! ```
//! use sluicegate::{Limiter, Rule};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let limiter = Limiter::in_memory(); // or Limiter::connect("redis://127.0.0.1/").await?
//! let rule: Rule = "gcra:30/60s:burst=16".parse()?;
//!
//! let answer = limiter.take("user7", &rule, 1).await?;
//! assert!(answer.allowed());
//! assert_eq!(answer.remaining, 15);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Limiter`]: takes, peeks, charges, refunds, reserves and resets, in memory or in a store.
//! - [`LocalLimiter`]: the same for one process, without async and without errors.
//! - [`Rule`]: a policy, and the answer while the store is unavailable.
//! - [`Shaper`]: a queue that releases items at the rate of a `leaky-queue`.
//!
//! Tower middleware for axum, tonic and hyper is in the crate `sluicegate-tower`.
//!
//! A policy is a string such as `gcra:30/60s:burst=16`, `sliding-log:1000/1h` or
//! `fixed-window:500/day:tz=Europe/Paris`, or several joined by commas ([`Policy`]). A denial is an answer,
//! never an error.

mod limiter;
mod local;
mod rule;
mod ruled;
mod shaper;

pub use limiter::Limiter;
pub use local::LocalLimiter;
pub use rule::Rule;
pub use ruled::Ruled;
pub use shaper::{Full, Shaper};
pub use sluicegate_core::{
    Decision, Operation, Outcome, Policy, PolicyError, ReserveError, Retry, Store,
};
pub use sluicegate_redis::{
    Answer, Counters, OnError, Options, RedisStore, Share, Source, StoreError as Error, TlsOptions,
};

/// The programs of the page on migration are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/coming-from.md")]
mod coming_from {}

/// The programs of the page on this crate are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
mod library {}
