//! The library in a process: requests that wait, permits of holds, and shapers, on the store of the process.

mod limiter;
mod permits;
mod shapers;

pub(crate) use self::limiter::Library;
