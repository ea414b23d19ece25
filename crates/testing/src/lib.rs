//! Helpers of tests and benchmarks, mainly Redis and Valkey servers on free loopback ports: one node, a cluster,
//! sentinels. The servers end with the thread that started them.
//!
//! - [`Engine`]: kinds of servers, and their programs;
//! - [`Server`]: a running server; [`Cluster`]: six of them; [`TempDir`]: a temporary folder for their files;
//! - [`RawClient`]: a connection that sends commands given as text;
//! - [`Application`]: an application in another language, behind a rate limiter;
//! - [`FakeClock`]: a wall clock that a test sets;
//! - [`corpus()`], [`check_mutations`]: the fuzzing corpora, for ordinary tests;
//! - [`cargo()`], [`module()`]: Cargo, and the module that tests load;
//! - [`eventually`], [`eventually_true`], [`now`], [`size`]: waiting with a deadline, and sizes of tests.
//!
//! Every failure here panics, and thereby fails the test.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod application;
mod cargo;
mod cluster;
mod corpus;
mod engine;
mod fake_clock;
mod invalid_waits;
mod module;
mod random;
mod raw_client;
mod server;
mod temp_dir;
mod timeout;

pub use application::{Application, LOGIN_SPELLINGS, LOGIN_VARIANTS, get};
pub use cargo::cargo;
pub use cluster::Cluster;
pub use corpus::{check_mutations, corpus};
pub use engine::Engine;
pub use fake_clock::FakeClock;
pub use invalid_waits::INVALID_WAITS;
pub use module::{module, target};
pub use random::Random;
pub use raw_client::{RawClient, integers};
pub use server::{Server, free_port};
pub use temp_dir::TempDir;
pub use timeout::{
    SetOnDrop, TEST_TIMEOUT, eventually, eventually_true, eventually_within, now, pause, size,
};
