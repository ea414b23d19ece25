//! The scripts on real servers: Redis 7.0, Valkey 9.1 and Redis 6.2, each started for its test.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod arithmetic;
mod calendars;
mod cell;
mod conformance;
mod faults;
mod functions;
mod holds;
mod lifetimes;
mod policy_text;
mod store;
