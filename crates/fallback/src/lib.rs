//! Decisions about the keys of a remote store, without a call to it.
//!
//! - [`DenialCache`] has the last replies of the store: denials that still apply, and the usage of keys.
//! - [`LocalFallback`] decides while the store is unavailable, as the [`OnError`](sluicegate_core::OnError) of a policy says.
//! - [`FallbackPolicy`] is a policy as both need it.
//!
//! Nothing here does I/O or reads a clock.

mod denial_cache;
mod fallback;
mod policy;

pub use denial_cache::{DenialCache, ForgetOnDrop, QueryToken};
pub use fallback::{LocalFallback, RETRY_AFTER};
pub use policy::{FallbackOperation, FallbackPolicy};
