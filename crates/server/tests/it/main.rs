//! The server from outside: bytes over a socket, and the clients that people use.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod auth;
mod batches;
mod client_commands;
mod clients;
mod conformance;
mod decisions;
mod harness;
mod limits;
mod patience;
#[cfg(target_os = "linux")]
mod process;
mod state;
mod stop;
mod tls;
mod transcripts;
#[cfg(unix)]
mod unix;
mod waiting;
