//! The face for HTTP.

pub(crate) mod client;
mod conformance;
mod decisions;
mod gate;
mod metrics;
mod proxies;
mod refused;
#[cfg(target_os = "linux")]
mod slow;
mod spellings;
mod store;
mod waiting;
