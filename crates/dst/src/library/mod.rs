//! The library in a process: requests that wait, permits of holds, and shapers, on the store of the process.

mod checked_store;
mod limiter;
mod permits;
mod shapers;

pub(crate) use self::{checked_store::CheckedStore, limiter::Library};
