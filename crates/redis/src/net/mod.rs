//! Reaching the servers: addresses, connections, clusters. Only these files, and those that ask, know
//! of redis-rs.

pub(crate) mod breaker;
pub(crate) mod context;
pub(crate) mod link;
pub(crate) mod topology;
pub(crate) mod url;
