//! The rate limit service over gRPC, with requests as Envoy sends them. `crates/cli` tests the binary with a real
//! Envoy.

mod calls;
pub(crate) mod client;
mod malformed;
mod metrics;
mod quotas;
mod rules;
mod services;
#[cfg(target_os = "linux")]
mod unavailable;
