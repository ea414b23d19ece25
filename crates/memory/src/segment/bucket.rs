//! Slots in memory: how they are read, and how a state is replaced.

use crate::{
    slot::Slot,
    sync::{AtomicU64, Ordering, pause},
};

/// Slots of a bucket.
pub(super) const WAYS: usize = 4;

/// The slots of one cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Bucket(pub(super) [Cell; WAYS]);

/// The two words of a slot.
#[derive(Debug, Default)]
pub(super) struct Cell {
    first: AtomicU64,
    second: AtomicU64,
}

impl Bucket {
    /// The slot with this first word, if the second word has its part of the fingerprint.
    ///
    /// `GUESS`: check the first slot first, which is likely that of a key with many requests.
    #[inline(always)]
    pub(super) fn peek<const GUESS: bool>(&self, wanted: Slot) -> Option<SlotRef<'_>> {
        if GUESS && let Some(seen) = self.0[0].peek(wanted) {
            return Some(seen);
        }
        // Without branches: they are unpredictable, and a misprediction would show only once the line has come from
        // memory, before which the next request could not begin.
        let found = (0..WAYS).fold(WAYS, |found, way| {
            let is_it = self.0[way].first.load(Ordering::Relaxed) == wanted.first;
            std::hint::select_unpredictable(is_it, way, found)
        });
        self.0.get(found)?.peek(wanted)
    }
}

impl Bucket {
    /// Its slots, as they are now.
    #[cfg(debug_assertions)]
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.0.iter().map(Cell::read)
    }
}

impl Cell {
    #[inline(always)]
    fn peek(&self, wanted: Slot) -> Option<SlotRef<'_>> {
        let slot = self.read();
        slot.matches(wanted).then_some(SlotRef { cell: self, slot })
    }

    #[inline(always)]
    pub(super) fn read(&self) -> Slot {
        // In this order, so that the first word is at least as new as the state.
        let second = self.second.load(Ordering::Acquire);
        Slot { first: self.first.load(Ordering::Acquire), second }
    }

    pub(super) fn write(&self, slot: Slot) {
        // A reader that sees the first word also sees that the earlier state was removed.
        self.first.store(slot.first, Ordering::Release);
        self.second.store(slot.second, Ordering::Release);
    }

    /// Claims the slot, unless its state has changed from `seen`.
    pub(super) fn take(&self, seen: Slot) -> bool {
        self.swap(seen.second, 0)
    }

    /// Restores the state of another key.
    #[cold]
    #[inline(never)]
    fn put_back(&self, second: u64) {
        self.second.store(second, Ordering::Release);
    }

    /// The contents once no decision is about to replace the state.
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

/// A slot as it was read without a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRef<'a> {
    pub(super) cell: &'a Cell,
    pub(super) slot: Slot,
}

impl SlotRef<'_> {
    #[inline(always)]
    pub(crate) const fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether both words were valid at one moment, and no decision is about to replace the state.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        self.cell.second.load(Ordering::Relaxed) == self.slot.second && !self.slot.has_mark()
    }

    /// Replaces the state, unless it or the key of the slot has changed. The state that was read must not be marked:
    /// a marked one admits nothing.
    #[inline(always)]
    pub(crate) fn replace(&self, slot: Slot) -> bool {
        debug_assert!(!self.slot.is_marked());
        if !self.cell.swap(self.slot.second, self.slot.marked()) {
            return false;
        }
        // The slot cannot change its key while its state is marked.
        if self.cell.first.load(Ordering::Relaxed) == self.slot.first {
            self.cell.second.store(slot.second, Ordering::Release);
            return true;
        }
        self.cell.put_back(self.slot.second);
        false
    }

    /// Waits until no decision is about to replace the state. Whether one was.
    #[inline(always)]
    pub(crate) fn wait_unmarked(&self) -> bool {
        if self.slot.has_mark() {
            self.cell.wait();
        }
        self.slot.has_mark()
    }
}
