//! Servers: addresses, connections, clusters.

pub(crate) mod breaker;
pub(crate) mod context;
mod flow;
pub(crate) mod node_connection;
mod permission;
mod report;
mod round_trip;
pub(crate) mod topology;
pub(crate) mod url;
