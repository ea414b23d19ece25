//! The rate limit service, asked over gRPC as Envoy asks it. Before a real Envoy it is tested with the
//! binary, in `crates/cli`.

mod calls;
mod client;
mod malformed;
mod rules;
mod services;
