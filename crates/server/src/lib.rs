//! The rate limiter as a server.
//!
//! [`Server::bind`] listens, [`Server::run`] serves until it is told to stop, and then answers every
//! request that was read. A face decodes, calls, encodes: RESP (`resp/`), HTTP with JSON (`http/`),
//! gRPC for Envoy (`envoy/`), the latter two over one kind of connection (`web/`). What is decided
//! is the core's, where it is kept is the store's.
//!
//! One thread accepts clients (`listen`) and hands them to the workers (`worker`), one a core. What
//! a worker does for a request writes nothing that another worker writes, except in the store.
//!
//! Rules in a file (`ruleset`) say which requests are limited by what; `judge` makes one verdict of all
//! that apply to a request.
//!
//! Invariants:
//! - time is read once per batch of pipelined requests, and a batch is answered with one write;
//! - a client that does not read its replies is not read from either: what is pending for it, and
//!   what it has sent unasked, is bounded; and it is closed when that lasts;
//! - a panic in one connection ends that connection and nothing else;
//! - a request is decided by one version of the rules, and rules that cannot be used change nothing;
//! - the state file is at any time a whole one, or there is none.

mod admin;
mod blocks;
mod buffers;
mod clients;
mod config;
mod dashboard;
mod decide;
mod descriptors;
mod envoy;
mod exposure;
mod home;
mod http;
mod incidents;
mod judge;
mod listen;
mod metrics;
mod parts;
mod protocol;
mod resp;
mod rules;
mod ruleset;
mod secret;
mod server;
mod snapshot_file;
mod snapshots;
mod state_file;
mod stats;
mod stopping;
mod stream;
mod tls;
mod turn;
mod wait;
mod web;
mod worker;

pub use config::{
    Config, DashboardMode, FallbackDenial, GateConfig, HttpHeaders, StoreConfig, TlsConfig,
};
pub use envoy::{EnvoyConfig, EnvoyHeaders};
pub use hyper::header::HeaderName;
pub use ruleset::{Files as RuleFiles, Reloaded};
pub use server::{Reloader, Server};
pub use sluicegate_memory::WhenFull;
