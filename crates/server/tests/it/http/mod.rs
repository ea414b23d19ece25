//! The HTTP protocol.

mod admin;
pub(crate) mod client;
mod conformance;
mod cross_site;
mod decisions;
#[cfg(target_os = "linux")]
mod flood;
#[cfg(target_os = "linux")]
mod frames;
mod gate;
mod holds;
mod metrics;
mod proxies;
mod rejected;
#[cfg(target_os = "linux")]
mod slow;
mod spellings;
mod store;
mod turns;
mod waiting;
