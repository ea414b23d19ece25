//! The face for HTTP.

pub(crate) mod client;
mod conformance;
mod decisions;
mod gate;
mod metrics;
mod refused;
#[cfg(target_os = "linux")]
mod slow;
mod waiting;
