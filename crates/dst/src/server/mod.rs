//! A run of a server of Sluicegate: its connections, waiting requests and decisions are production code, on the streams, in the
//! time and on the runtime of the simulation.
//!
//! The server runs in one thread, decides what it has read at one time, and offers the replies to its connection at once.
//! Therefore the order in which it offers replies is the order in which it decided, and each must be what the oracle answers
//! at that moment.

mod client;
mod clock;
mod command;
mod ledger;
mod plan;
mod world;

pub(crate) use self::plan::Server;
