//! A run of a server of Sluicegate: its RESP sessions, waiting requests and decisions are production code, on the connections,
//! in the time and on the runtime of the simulation.
//!
//! The server runs in one thread, decides what it has read at one time, and offers the replies to its connection at once.
//! Therefore the order in which it offers replies is the order in which it decided, and each must be what the oracle answers
//! at that moment.

mod client;
mod clock;
mod command;
mod ledger;
mod server_end;
mod steps;
mod waiters;

pub(crate) use self::steps::run;
