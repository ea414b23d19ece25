//! Random numbers from a seed.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A sequence of random numbers. Clones continue the same sequence.
#[derive(Clone, Debug)]
pub(crate) struct Random(Arc<AtomicU64>);

impl Random {
    /// The sequence of `purpose` under `seed`. The draws of one purpose do not change those of another.
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        let folded = purpose.bytes().fold(seed, |state, byte| mix(state ^ u64::from(byte)));
        Self(Arc::new(AtomicU64::new(folded)))
    }

    /// Any number.
    pub(crate) fn next(&self) -> u64 {
        // SplitMix64.
        mix(self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
    }

    /// A number below `end`, which is at least 1.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number from `first` to `last`.
    pub(crate) fn between(&self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// Whether something happens that happens `percent` times in a hundred.
    pub(crate) fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// An index of a list of this length, which is at least 1.
    pub(crate) fn index(&self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or_default()
    }

    /// One of `items`, of which there is at least one.
    pub(crate) fn pick<'a, T>(&self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
