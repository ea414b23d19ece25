//! RESP: decodes commands, calls what carries them out, encodes replies.

mod again;
mod batch;
mod client;
mod command;
mod connection;
mod context;
mod greeting;
mod info;
mod job;
mod keys;
mod limiter;
mod list;
mod pool;
mod serve;
mod service;
mod session;
mod settings;
mod table;
mod worker;

pub(crate) use self::{
    context::RespContext,
    service::{PROTOCOL, service},
};
