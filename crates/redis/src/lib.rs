//! State in Redis or Valkey: one decision is one script call on one key, by the clock of the server.
//!
//! - [`RedisStore`]: one server, a cluster, or a primary that sentinels monitor; over TLS; with a deadline
//!   for each decision.
//! - [`PreparedPolicy`]: a policy, the decision while the store is unavailable ([`OnError`]), and whether keys
//!   with much traffic are leased.
//! - [`Answer`]: a decision and its [`Source`]: the store, its last denial, a lease, or this process.
//!
//! [`script`] has the scripts, their arguments and their replies. The Lua is in `lua/`, one file per algorithm.
//!
//! From top to bottom: `store`, `lease_refill`, `pipeline` and `multi_key` (decisions), `local` (denial cache,
//! leases, fallback), `call` (one command, its retries and redirects), `net` (servers and connections), `reply`
//! and `script_command`.

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
