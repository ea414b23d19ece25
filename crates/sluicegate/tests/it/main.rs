//! The library as its users see it, in this process; and the examples, run. Over Redis it is tested in the crate
//! `sluicegate-redis`.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod examples;
mod hold;
mod limiter;
mod same_calls;
mod shaper;
mod slow_store;
mod types;
mod wait;
