//! The store as its users see it, on real servers, also while they fail. `cargo xtask chaos` runs the
//! tests of faults in their full sizes.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod answers;
mod cluster;
mod demoted;
mod failover;
mod fallback;
mod holds;
mod keys;
mod late;
mod leases;
mod library;
mod load;
mod logs;
mod module;
mod multi_key;
mod partition;
mod proxy;
mod rejected;
mod sentinel;
mod servers;
mod settings;
mod state;
mod tls;
mod unavailable;
mod wire;
