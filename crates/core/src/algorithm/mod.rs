//! The algorithms, one file each.
//!
//! A file holds all of its algorithm ([`Algorithm`](api::Algorithm)): the parameters, the policy string, the bytes of
//! its state, the decision, what a new policy makes of an old state, and its bounds in numbers and in words.
//! Everything else asks [`Limit`].

mod api;
mod event_log;
mod events;
mod fixed_window;
mod gcra;
mod interval_bucket;
mod limit;
mod sliding_counter;
mod sliding_log;

pub(crate) use self::{
    fixed_window::State as WindowState,
    limit::{ALGORITHMS, State},
};
pub use self::{
    fixed_window::{Align, FixedWindow, Window, WindowTake},
    gcra::{Gcra, GcraName, GcraTake},
    interval_bucket::IntervalBucket,
    limit::Limit,
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
};
