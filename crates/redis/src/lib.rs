//! State in Redis or Valkey: one decision is one script call on one key, by the server's own clock.
//!
//! - [`RedisStore`]: one server, a cluster, or a primary that sentinels watch; over TLS; with a deadline
//!   for each decision.
//! - [`PreparedPolicy`]: a policy, what is answered while the store is away ([`OnError`]), and whether keys that
//!   are asked for again and again are leased.
//! - [`Answer`]: a decision and its [`Source`]: the store, its last denial, a lease, or this process.
//!
//! [`script`] is what runs inside the server, and the words in which it is asked and answers. The
//! Lua is in `lua/`, a file an algorithm.
//!
//! From the outside in: `store`, `leased` and `many` (who answers), `local` (denials, leases, what stands in),
//! `call` (one question, and what is to be asked again), `net` (servers and connections).

mod answer;
mod call;
mod counters;
mod error;
mod get_entry;
mod health;
mod latency;
mod lease_refill;
mod local;
mod multi_key;
mod native;
mod net;
mod options;
mod pipeline;
mod prepared_policy;
mod reply;
pub mod script;
mod script_command;
#[cfg(test)]
mod simulation;
mod slot;
mod status;
mod store;

pub use answer::{Answer, Source};
pub use counters::Counters;
pub use error::StoreError;
pub use health::Health;
pub use latency::RoundTrips;
pub use multi_key::{KeyedTake, MultiKeyAnswer};
pub use net::breaker::PROBE_EVERY;
pub use options::{Options, TlsOptions};
pub use pipeline::KeyedOperation;
pub use prepared_policy::{OnError, PreparedPolicy};
pub use sluicegate_core::Share;
pub use status::{Problem, ServerStatus, Status};
pub use store::RedisStore;
