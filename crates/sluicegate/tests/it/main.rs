//! The library as its users see it, in this process and over a real Redis; and the examples, run.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod examples;
mod limiter;
mod server;
mod shaper;
