//! The traffic that `simulate` and `recommend` read: a trace, an access log, or synthetic traffic.

mod options;
mod source;
pub(crate) mod unzip;

pub(crate) use self::{
    options::{Durations, InputOptions, Reading, given},
    source::{Input, Source},
};
