//! Answers without a call to the store: leases. Remembered denials and fallback decisions are in `sluicegate-fallback`.

pub(crate) mod lease;
pub(crate) mod sync;
