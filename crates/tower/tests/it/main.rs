//! The layer before services, with a manual clock, over a real Redis, and in the examples.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod concurrency;
mod examples;
mod hold;
mod hold_waiting;
mod layer;
mod rejections;
mod server;
mod store;
mod waiting;
