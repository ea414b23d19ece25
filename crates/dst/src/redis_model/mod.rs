//! A model of Redis servers, one or a cluster: strings with expiry, the effects of our scripts, and what goes wrong with
//! servers.
//!
//! Each value has a shadow: the state of the oracle for its key. It is copied, kept and lost with the value. Whatever a
//! script decides, the oracle decides as well, and both must agree.

mod calendars;
mod cluster;
#[cfg(test)]
mod compared;
mod decide;
mod failover;
mod script;
mod serve;
mod server;
mod servers;
mod session;
mod slots;
mod slow_script;

pub(crate) use self::{
    script::Policies,
    serve::serve,
    server::{Brand, KeyMoment, RedisModel},
    servers::Servers,
    slow_script::ARMED,
};
