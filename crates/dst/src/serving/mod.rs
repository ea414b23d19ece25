//! Servers of Sluicegate on the shared store: each is one of the processes, and its clients speak RESP or
//! HTTP.
//!
//! The answers of the store of a server are checked as for any other process. Here, each reply to a client must be one of these
//! answers, and each client gets its reply in time.

mod answers;
mod connection;
mod server_process;

pub(crate) use self::server_process::ServerProcess;
