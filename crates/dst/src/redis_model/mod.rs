//! A model of Redis servers, one or a cluster: strings with expiry, the effects of our scripts, and what goes wrong with
//! servers.
//!
//! Each value has a shadow: the state of the oracle for its key. It is copied, kept and lost with the value. Whatever a
//! script decides, the oracle decides as well, and both must agree.

mod cluster;
#[cfg(test)]
mod compared;
mod script;
mod server;
mod session;

pub(crate) use self::{
    cluster::{Servers, serve},
    script::Policies,
    server::{ARMED, Brand, KeyMoment, RedisModel},
};
