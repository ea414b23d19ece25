//! How much memory the store may take, and what it counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What to answer a new key for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Deny it: a flood of keys lets nobody through.
    #[default]
    Deny,
    /// Allow it, uncounted: a flood of keys stops nobody.
    Allow,
}

/// What a store holds and has turned away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Keys held, those among them that have recovered and were not passed by yet.
    pub keys: usize,
    /// Bytes taken up.
    pub bytes: usize,
    /// Bytes that may be taken up.
    pub max_bytes: usize,
    /// Requests for which there was no room, and which were denied or allowed uncounted.
    pub turned_away: u64,
    /// Keys of the state file that were dropped at the start, since they did not fit into `max_bytes`.
    pub keys_dropped: usize,
}

/// The bytes taken up, and their bound.
#[derive(Debug)]
pub(crate) struct Budget {
    max: usize,
    bytes: AtomicUsize,
    keys: AtomicUsize,
    turned_away: AtomicU64,
}

impl Budget {
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            max,
            bytes: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            turned_away: AtomicU64::new(0),
        }
    }

    /// Whether so many bytes more would fit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) + bytes <= self.max
    }

    /// Counts a change of what is taken up.
    pub(crate) fn resize(&self, before: usize, after: usize) {
        // Wrapping: a fall is added as its complement.
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    pub(crate) fn count_keys(&self, before: usize, after: usize) {
        self.keys.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    pub(crate) fn count_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            keys: self.keys.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            max_bytes: self.max,
            turned_away: self.turned_away.load(Ordering::Relaxed),
            keys_dropped: 0,
        }
    }
}
