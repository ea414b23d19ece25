//! The simulator as its users see it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod check_log;
mod check_trace;
mod corpus;
mod in_flight;
mod oracle;
mod pieces;
mod scenarios;
mod sliding_counter;
