//! Slots in memory: how they are read, and how a state is replaced.

use super::WAYS;
use crate::{
    slot::Slot,
    sync::{AtomicU64, Ordering, pause},
};

/// One cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Bucket(pub(super) [Cell; WAYS]);

/// Where a slot is kept.
#[derive(Debug, Default)]
pub(super) struct Cell {
    first: AtomicU64,
    second: AtomicU64,
}

impl Bucket {
    /// The slot with this first word, if the part of the fingerprint in the second is its too.
    ///
    /// `GUESS`: it is likely the first, as that of a key is that comes again and again.
    #[inline(always)]
    pub(super) fn peek<const GUESS: bool>(&self, wanted: Slot) -> Option<Seen<'_>> {
        if GUESS && let Some(seen) = self.0[0].peek(wanted) {
            return Some(seen);
        }
        // Without a branch for each: which it is cannot be foretold, and a wrong guess would be found
        // out only when the line has come from memory; meanwhile the next request could not begin.
        let found = (0..WAYS).fold(WAYS, |found, way| {
            let is_it = self.0[way].first.load(Ordering::Relaxed) == wanted.first;
            std::hint::select_unpredictable(is_it, way, found)
        });
        self.0.get(found)?.peek(wanted)
    }
}

impl Cell {
    #[inline(always)]
    fn peek(&self, wanted: Slot) -> Option<Seen<'_>> {
        let slot = self.read();
        slot.is(wanted).then_some(Seen { cell: self, slot })
    }

    #[inline(always)]
    pub(super) fn read(&self) -> Slot {
        // In this order: a state that is seen has its first word seen.
        let second = self.second.load(Ordering::Acquire);
        Slot { first: self.first.load(Ordering::Acquire), second }
    }

    pub(super) fn write(&self, slot: Slot) {
        // Whoever sees the first word sees that the state before it was taken out.
        self.first.store(slot.first, Ordering::Release);
        self.second.store(slot.second, Ordering::Release);
    }

    /// Takes the state `seen` out of it, unless it has changed.
    pub(super) fn take(&self, seen: Slot) -> bool {
        self.swap(seen.second, 0)
    }

    /// Takes the mark from the state of another key.
    #[cold]
    #[inline(never)]
    fn put_back(&self, second: u64) {
        self.second.store(second, Ordering::Release);
    }

    /// What it holds once no decision is about to replace it.
    pub(super) fn settled(&self) -> Slot {
        let slot = self.read();
        if slot.is_marked() { self.wait() } else { slot }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Slot {
        let mut turns = 0..;
        loop {
            pause(turns.next().unwrap_or(u32::MAX));
            let slot = self.read();
            if !slot.is_marked() {
                return slot;
            }
        }
    }

    #[inline(always)]
    fn swap(&self, from: u64, to: u64) -> bool {
        self.second.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A slot as it was seen without a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(super) cell: &'a Cell,
    pub(super) slot: Slot,
}

impl Seen<'_> {
    #[inline(always)]
    pub(crate) const fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether the slot was all of one moment: its words belong to each other, and no decision is
    /// about to replace its state.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        self.cell.second.load(Ordering::Relaxed) == self.slot.second && !self.slot.has_mark()
    }

    /// Replaces the state, unless it or the key in the slot has changed. What was seen must not be marked, which
    /// it is not where something is admitted.
    #[inline(always)]
    pub(crate) fn replace(&self, slot: Slot) -> bool {
        debug_assert!(!self.slot.is_marked());
        if !self.cell.swap(self.slot.second, self.slot.marked()) {
            return false;
        }
        // The slot does not change hands while its state is marked.
        if self.cell.first.load(Ordering::Relaxed) == self.slot.first {
            self.cell.second.store(slot.second, Ordering::Release);
            return true;
        }
        self.cell.put_back(self.slot.second);
        false
    }

    /// Waits until no decision is about to replace the state, and tells whether one was.
    #[inline(always)]
    pub(crate) fn settle(&self) -> bool {
        if self.slot.has_mark() {
            self.cell.wait();
        }
        self.slot.has_mark()
    }
}
