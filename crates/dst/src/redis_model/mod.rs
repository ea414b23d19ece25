//! A model of a Redis server: strings with expiry, the effects of our scripts, and what goes wrong with servers.
//!
//! Each value has a shadow: the state of the oracle for its key. It is copied, kept and lost with the value. Whatever a
//! script decides, the oracle decides as well, and both must agree.

mod calendars;
#[cfg(test)]
mod compared;
mod multi_key;
mod multi_key_call;
mod script;
mod server;
mod session;

pub(crate) use self::{
    multi_key_call::MultiKeyCall,
    script::{Policies, ScriptCall, ScriptOperation},
    server::{Brand, RedisModel},
    session::serve,
};
