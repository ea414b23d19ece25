//! The rate limiter as a server.
//!
//! [`Server::bind`] listens, [`Server::run`] serves until its shutdown future is ready, and then answers every
//! request that has arrived.
//!
//! The modules are layers; each uses only those below it:
//!
//! | layer | holds |
//! | --- | --- |
//! | `server` | start, stop, the table of protocols, what each of them gets |
//! | `dashboard`, `metrics`, `admin` | routes that `server` mounts in HTTP |
//! | `protocols` | RESP, HTTP with JSON, gRPC for Envoy: decode, decide, encode |
//! | `net` | listeners, TLS, permits of clients, workers, connections that speak HTTP |
//! | `wait` | requests that wait for their key |
//! | `decide` | one request in, one decision out: blocks, rules, the store, the requests that may then pass |
//! | `policies` | policies by text or name, the rules in force and their reload |
//! | `store` | where state is kept, snapshots, the state file |
//! | `denial_log` | why requests were denied, as lines of a log |
//! | `key_display` | how keys are shown to operators |
//! | `settings` | what can be configured |
//! | `telemetry` | spans for OpenTelemetry, sent to a collector |
//! | `stats` | counters of each protocol and worker, samples of keys |
//! | `budgets` | memory and time that clients may take up |
//! | `clock` | the system clock, or the virtual time of a simulation |
//! | `stopping` | whether the server stops |
//!
//! One thread accepts clients and hands them to the workers, one per core. For a request, a worker writes no
//! memory that another worker writes, except in the store.
//!
//! Invariants:
//! - requests that are decided as one batch have one time, and are answered with one write;
//! - a client that does not read its replies is not read from either: what is pending for it, and
//!   what it has sent unasked, is bounded; and it is closed when that lasts;
//! - a panic in one connection ends that connection and nothing else;
//! - a request is decided by one version of the rules, and rules that cannot be used change nothing;
//! - the state file is at any time a whole one, or there is none.

mod admin;
mod budgets;
mod clock;
mod dashboard;
mod decide;
mod denial_log;
mod key_display;
mod metrics;
mod net;
mod policies;
mod protocols;
mod server;
mod settings;
mod stats;
mod stopping;
mod store;
mod telemetry;
mod wait;

/// For the deterministic simulation of this workspace: not a part of the interface, and changes at any time.
#[doc(hidden)]
pub use self::server::simulation;
pub use hyper::header::HeaderName;
pub use sluicegate_headers::HeaderStyle;
pub use sluicegate_memory::WhenFull;

pub use self::{
    policies::rule_store::{Files as RuleFiles, ReloadReport},
    server::{Reloader, Server},
    settings::{
        Config, DashboardMode, DenialOutput, EnvoyConfig, EnvoyHeaders, FallbackDenial, GateConfig,
        HttpConfig, MemoryConfig, RespConfig, StoreConfig, TimeoutConfig, TlsConfig,
    },
    telemetry::{OtlpEndpoint, Telemetry},
};
