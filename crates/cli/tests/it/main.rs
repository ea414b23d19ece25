//! The command, run as people run it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
mod envoy;
mod redis;
mod rules;
mod run;
mod scenarios;
mod server;
mod simulate;
mod texts;
