//! The face for RESP: decodes commands, calls what carries them out, encodes replies.

mod again;
mod batch;
mod client;
mod command;
mod connection;
mod greeting;
mod info;
mod job;
mod keys;
mod limiter;
mod list;
mod pool;
mod serve;
mod session;
mod settings;
mod table;

pub(crate) use again::Again;
pub(crate) use job::Deferred;
pub(crate) use pool::BufferPool;
pub(crate) use serve::serve;
