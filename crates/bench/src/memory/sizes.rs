//! Sizes of the benchmark of the store in memory.

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) rounds: usize,
    /// Calls per round on one key.
    pub(super) hot_calls: u64,
    /// Calls per round on random keys.
    pub(super) random_calls: u64,
    pub(super) keys: u64,
}

pub(super) const FULL: Sizes =
    Sizes { rounds: 5, hot_calls: 2_000_000, random_calls: 3_000_000, keys: 10_000_000 };
pub(super) const QUICK: Sizes =
    Sizes { rounds: 2, hot_calls: 1000, random_calls: 1000, keys: 5000 };
