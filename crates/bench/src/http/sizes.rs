//! Sizes of the HTTP benchmark.

use std::time::Duration;

use crate::resp::command::MAX_KEYS;

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) rounds: usize,
    pub(super) connections: usize,
    pub(super) keys: u64,
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
}

pub(super) const FULL: Sizes = Sizes {
    rounds: 9,
    connections: 64,
    keys: MAX_KEYS,
    warm_up: Duration::from_millis(200),
    measured: Duration::from_millis(1200),
};
pub(super) const QUICK: Sizes = Sizes {
    rounds: 2,
    connections: 4,
    keys: 1000,
    warm_up: Duration::from_millis(2),
    measured: Duration::from_millis(10),
};
