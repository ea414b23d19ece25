//! The rate limit service, asked over gRPC as Envoy asks it. Before a real Envoy it is tested with the
//! binary, in `crates/cli`.

#[cfg(target_os = "linux")]
mod away;
mod calls;
pub(crate) mod client;
mod malformed;
mod metrics;
mod rules;
mod services;
