//! Answers without a call to the store: remembered denials, leases, and fallback decisions.

pub(crate) mod denial_cache;
pub(crate) mod fallback;
pub(crate) mod lease;
pub(crate) mod sync;
