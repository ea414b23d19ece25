//! The face for HTTP.

pub(crate) mod client;
mod conformance;
mod decisions;
mod refused;
mod waiting;
