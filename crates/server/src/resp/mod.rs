//! RESP: reads commands, runs them, and writes replies.
//!
//! - `serve` runs a connection until it ends; `connection` reads batches of commands and sends replies.
//! - `call` finds a command in the table and runs it; `commands/` has those that only the server has.
//! - `batch` collects decisions and makes them together; `store_operation` applies everything else to the store.
//! - `session` is the state of a connection, `repeat` a fast path for repeated commands, `pool` has the buffers.

mod batch;
mod call;
mod commands;
mod connection;
mod pool;
mod repeat;
mod serve;
mod session;
mod store_operation;

pub(crate) use pool::BufferPool;
pub(crate) use repeat::RepeatCache;
pub(crate) use serve::serve;
pub(crate) use store_operation::DeferredReplies;
