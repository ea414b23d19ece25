//! The simulator as its users see it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corpus;
mod oracle;
mod scenarios;
mod sliding_counter;
