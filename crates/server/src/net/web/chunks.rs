//! Chunks of replies that a client of HTTP/2 has not read, and since when.

use slab::Slab;
use sluicegate_core::Timestamp;

/// The unread chunks, each in a slot, with the first check that found it unread.
#[derive(Debug, Default)]
pub(super) struct Chunks(Slab<Option<Timestamp>>);

impl Chunks {
    /// Adds a chunk, and returns its slot.
    pub(super) fn add(&mut self) -> usize {
        self.0.insert(None)
    }

    /// Removes the chunk in this slot: it was read, or its request is gone.
    pub(super) fn remove(&mut self, slot: usize) {
        self.0.remove(slot);
    }

    /// The first check that found the oldest chunk unread, this one at `now` included.
    pub(super) fn check(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.0.is_empty() {
            // Its memory is released, too.
            self.0 = Slab::new();
        }
        self.0.iter_mut().map(|(_, since)| *since.get_or_insert(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_oldest_chunk_waits_since_the_first_check() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let mut chunks = Chunks::default();
        assert_eq!(chunks.check(at(1)), None);
        let (first, second) = (chunks.add(), chunks.add());
        assert_eq!(chunks.check(at(2)), Some(at(2)));
        chunks.remove(first);
        let third = chunks.add();
        assert_eq!((third, chunks.check(at(3))), (first, Some(at(2))));
        chunks.remove(second);
        assert_eq!(chunks.check(at(4)), Some(at(3)));
        chunks.remove(third);
        assert_eq!(chunks.check(at(5)), None);
    }
}
