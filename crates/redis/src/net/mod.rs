//! Reaching the servers: addresses, connections, clusters. Only these files, and those that ask, know
//! of redis-rs.

pub(crate) mod breaker;
mod connect;
pub(crate) mod context;
mod flow;
pub(crate) mod keeper;
pub(crate) mod link;
mod permission;
mod report;
pub(crate) mod topology;
pub(crate) mod url;
