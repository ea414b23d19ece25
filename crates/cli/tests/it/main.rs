//! The command, run as people run it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod config;
mod documents;
#[cfg(target_os = "linux")]
mod envoy;
mod health;
mod holds;
mod logs;
mod mistakes;
#[cfg(unix)]
mod operator;
mod pictures;
#[cfg(target_os = "linux")]
mod platform;
mod recommend;
mod redis;
mod rules;
mod run;
mod scenarios;
mod schema;
mod server;
mod simulate;
mod texts;
#[cfg(target_os = "linux")]
mod walkthroughs;
#[cfg(target_os = "linux")]
mod why;
