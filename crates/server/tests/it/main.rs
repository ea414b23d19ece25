//! The server from outside: bytes over a socket, and the clients that people use.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod auth;

mod client_commands;
mod clients;
mod conformance;
mod decisions;
mod harness;
mod limits;
mod stop;
mod transcripts;
mod waiting;
