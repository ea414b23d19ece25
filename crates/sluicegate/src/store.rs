//! What a [`Store`](crate::Store) of your own takes and returns.
//!
//! A store that wraps another one, for example to count its calls, implements [`AsStore`](crate::AsStore) instead, and
//! needs nothing of this:
//!
//! ```
//! use sluicegate::{AsStore, Limiter, LocalLimiter, PreparedPolicy};
//!
//! #[derive(Debug)]
//! struct Named { name: &'static str, limiter: LocalLimiter }
//!
//! impl AsStore for Named {
//!     type Inner = LocalLimiter;
//!
//!     fn as_store(&self) -> &LocalLimiter {
//!         println!("a call to {}", self.name);
//!         &self.limiter
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let limiter = Limiter::new(Named { name: "local", limiter: LocalLimiter::new() });
//! let policy: PreparedPolicy = "gcra:30/1m".parse()?;
//! assert!(limiter.take("user7", &policy, 1).await?.allowed());
//! # Ok::<(), sluicegate::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use sluicegate_core::{
    AppliedFuture, BoxFuture, Entry, KeyLengthError, MAX_KEY, NodeHealth, ReadEntry, RemoteStatus,
    RoundTrips, StoreId, StoreStatus, TableUsage,
};
