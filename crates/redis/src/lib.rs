//! State in Redis or Valkey: one decision is one script call on one key, by the server's own clock.
//!
//! - [`RedisStore`]: one server, a cluster, or a primary that sentinels watch; over TLS; with a deadline
//!   for each decision.
//! - [`Rule`]: a policy, what is answered while the store is away ([`OnError`]), and whether keys that
//!   are asked for again and again are leased.
//! - [`Answer`]: a decision and its [`Source`]: the store, its last denial, a lease, or this process.
//!
//! [`script`] is what runs inside the server, and the words in which it is asked and answers. The
//! Lua is in `lua/`, a file an algorithm.
//!
//! From the outside in: `store`, `leased` and `many` (who answers), `front` (denials, leases, what stands in),
//! `call` (one question, and what is to be asked again), `net` (servers and connections).

mod answer;
mod call;
mod counters;
mod error;
mod front;
mod health;
mod latency;
mod leased;
mod look;
mod many;
mod native;
mod net;
mod options;
mod rule;
pub mod script;
#[cfg(test)]
mod simulation;
mod slot;
mod status;
mod store;
mod together;

pub use answer::{Answer, Source};
pub use counters::Counters;
pub use error::StoreError;
pub use health::Health;
pub use latency::RoundTrips;
pub use many::Question;
pub use net::keeper::PROBE_EVERY;
pub use options::{Options, TlsOptions};
pub use rule::{OnError, Rule};
pub use sluicegate_core::Share;
pub use status::{Problem, ServerStatus, Status};
pub use store::RedisStore;
pub use together::{JointAnswer, Take};
