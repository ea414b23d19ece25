//! The server from outside: bytes over a socket, and the clients that people use.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod as_store;
mod auth;
mod batches;
#[cfg(target_os = "linux")]
mod child_process;
mod client_commands;
mod clients;
#[cfg(target_os = "linux")]
mod clock;
mod conformance;
#[cfg(target_os = "linux")]
mod dashboard;
mod decisions;
#[cfg(target_os = "linux")]
mod denial_log;
mod envoy;
mod fairness;
#[cfg(target_os = "linux")]
mod faulty;
mod harness;
mod held;
mod hierarchy;
#[cfg(target_os = "linux")]
mod holders;
mod holds;
mod http;
#[cfg(target_os = "linux")]
mod key_list;
mod killed;
#[cfg(target_os = "linux")]
mod latency;
mod limits;
#[cfg(target_os = "linux")]
mod process;
mod protocols;
mod rules;
#[cfg(target_os = "linux")]
mod slow;
#[cfg(target_os = "linux")]
mod snippets;
#[cfg(target_os = "linux")]
mod soak;
mod state;
mod stop;
#[cfg(target_os = "linux")]
mod store;
mod timeouts;
mod tls;
mod transcripts;
#[cfg(unix)]
mod unix;
mod waiting;
mod waiting_multi_key;
