//! What tests and benchmarks have in common. Above all, servers of Redis and Valkey on free ports of the
//! loopback: one alone, a cluster, sentinels. They end with whoever started them.
//!
//! - [`Engine`]: which server, and where its program is;
//! - [`Server`]: one that runs; [`Cluster`]: six of them; [`Folder`]: where one keeps its files;
//! - [`Peer`]: a connection that asks in words;
//! - [`Application`]: what a rate limiter stands before, in other languages;
//! - [`FakeClock`]: a wall clock that steps;
//! - [`corpus()`], [`check_mutations`]: what fuzzing has found, for ordinary tests;
//! - [`cargo()`], [`module()`]: what is built beside the tests;
//! - [`eventually`], [`until`], [`now`], [`size`]: waiting with a deadline, and how much a test does.
//!
//! Whatever goes wrong here panics: it fails the test.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod application;
mod cargo;
mod cluster;
mod corpus;
mod engine;
mod fake_clock;
mod folder;
mod module;
mod patience;
mod peer;
mod server;

pub use application::{Application, LOGIN_SPELLINGS, LOGIN_VARIANTS, get};
pub use cargo::cargo;
pub use cluster::Cluster;
pub use corpus::{check_mutations, corpus};
pub use engine::Engine;
pub use fake_clock::FakeClock;
pub use folder::Folder;
pub use module::{module, target};
pub use patience::{PATIENCE, SetOnDrop, eventually, eventually_within, now, rest, size, until};
pub use peer::{Peer, integers};
pub use server::{Server, free_port};
