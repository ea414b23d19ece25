//! The rate limiter as a server.
//!
//! [`Server::bind`] listens, [`Server::run`] serves until it is told to stop, and then answers every
//! request that was read. The one face for now is RESP (`resp/`): it decodes, calls, encodes; what
//! is decided is the core's, where it is kept is the store's.
//!
//! Invariants:
//! - time is read once per batch of pipelined requests;
//! - a client that does not read its replies is not read from either: what is pending for it, and
//!   what it has sent unasked, is bounded;
//! - a panic in one connection ends that connection and nothing else.

mod config;
mod resp;
mod server;
mod shared;
mod stats;
mod wait;

pub use config::Config;
pub use server::Server;
