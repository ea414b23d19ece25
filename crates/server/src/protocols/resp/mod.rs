//! RESP: reads commands, runs them, and writes replies.
//!
//! - `service` runs a connection until it ends; `connection` reads batches of commands and sends replies.
//! - `call` finds a command in the table and runs it; `commands/` has those that only the server has.
//! - `batch` collects decisions and makes them together; `store_operation` applies everything else to the store.
//! - `session` is the state of a connection, `repeat` a fast path for repeated commands, `pool` has the buffers.

mod batch;
mod batch_entry;
mod call;
mod commands;
mod connection;
mod deferred_replies;
mod pool;
mod session;
mod store_operation;
mod worker;

pub(crate) use self::{
    connection::{PROTOCOL, service},
    worker::RespContext,
};
