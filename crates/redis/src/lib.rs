//! State in Redis or Valkey: one decision is one script call on one key, by the clock of the server.
//!
//! - [`RedisStore`]: one server, a cluster, or a primary that sentinels monitor; over TLS; with a deadline
//!   for each decision.
//! - [`Options`]: its settings.
//!
//! [`script`] has the scripts, their arguments and their replies. The Lua is in `lua/`, one file per algorithm.
//!
//! From top to bottom: `store`, `decide`, `lease_refill`, `pipeline` and `multi_key` (decisions), `local` (denial cache,
//! leases, fallback), `call` (one command, its retries and redirects), `net` (servers and connections), `reply`
//! and `script_command`.

mod call;
mod counters;
mod decide;
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
mod planned_policy;
mod reply;
pub mod script;
mod script_command;
#[cfg(test)]
mod simulation;
mod slot;
mod status;
mod store;

use planned_policy::PlannedPolicy;

pub use net::breaker::PROBE_EVERY;
pub use options::{Options, TestClock, TlsOptions};
pub use status::{Problem, ServerStatus, Status};
pub use store::RedisStore;
