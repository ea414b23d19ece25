//! State in Redis or Valkey: one decision is one script call on one key, by the clock of the server.
//!
//! With the crate `sluicegate`, a limiter that many processes share:
//!
//! ```no_run
//! use sluicegate::{Limiter, OnError, PreparedPolicy, Share};
//! use sluicegate_redis::{Options, RedisStore};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let limiter = Limiter::new(RedisStore::new("redis://127.0.0.1/", Options::default())?);
//! let policy: PreparedPolicy = "gcra:30/60s:burst=16".parse()?;
//! // Take up to 8 units at once for busy keys; a quarter of the policy while the store is unavailable.
//! let policy = policy.lease(8)?.on_error(OnError::Local(Share::of(1, 4)?));
//!
//! if !limiter.take("user7", &policy, 1).await?.allowed() {
//!     println!("denied");
//! }
//! limiter.close().await; // gives unused leases back
//! # Ok::<(), sluicegate::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`RedisStore`]: one server, a cluster, or a primary that sentinels monitor; over TLS; with a deadline
//!   for each decision.
//! - [`Options`]: its settings.
//!
//! Within a [`tracing`] span, each round trip to a server has one of its own, at the level trace. Its fields are named as
//! OpenTelemetry's conventions for databases name them (`db.operation.name`), and none has a key.
//!
//! [`script`] has the scripts, their arguments and their replies. The Lua is in `lua/`, one file per algorithm.
//!
//! From top to bottom: `store` (decisions, batches, leases), `inner` (one command, its retries and redirects, several keys, and the
//! state that all of these share), `lease` (denial cache and fallback are the crate `sluicegate-fallback`), `net` (servers and connections), `reply`
//! and `script`.

mod delete_matching;
mod inner;
mod lease;
mod native;
mod net;
mod options;
mod planned_policy;
mod reply;
pub mod script;
mod slot;
mod status;
mod store;
mod sync;

use planned_policy::{PlannedOperation, PlannedPolicy};

pub use net::{
    breaker::PROBE_EVERY,
    url::{SCHEMES, URL_FORMS},
};
pub use options::{Connection, Environment, Options, TestClock, TlsOptions};
pub use status::{ServerStatus, Status, StoreProblem};
pub use store::RedisStore;

/// The programs of the page on the library are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
mod library {}

/// The program of the page on the store is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/redis.md")]
mod page {}

/// The program of the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// The program of the project's README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod project_readme {}
