//! A run of a table in memory: production code, whose file, time and random numbers are simulated.
//!
//! Steps are taken one after the other; while a snapshot is written, between two writes. Each answer must be the oracle's
//! in one of the states that the key may have: one before a crash, several after it.

mod disk;
mod plan;
mod states;
mod world;

pub(crate) use self::plan::Table;
