//! Servers: addresses, connections, clusters.

pub(crate) mod breaker;
pub(crate) mod context;
pub(crate) mod node_connection;
mod report;
pub(crate) mod topology;
pub(crate) mod url;
