//! Chunks of replies that a client of HTTP/2 has not read, and since when.

use sluicegate_core::Timestamp;

/// The unread chunks, each in a slot.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: Vec<Chunk>,
    free: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Taken,
    /// Sent since the last check.
    New,
    /// Unread since this check.
    Since(Timestamp),
}

impl Chunks {
    /// Adds a chunk, and returns its slot.
    pub(super) fn add(&mut self) -> usize {
        if let Some(at) = self.free.pop() {
            self.chunks[at] = Chunk::New;
            return at;
        }
        self.chunks.push(Chunk::New);
        self.chunks.len() - 1
    }

    /// Removes the chunk in this slot: it was read, or its request is gone.
    pub(super) fn remove(&mut self, at: usize) {
        self.chunks[at] = Chunk::Taken;
        self.free.push(at);
    }

    /// Looks which parts are there; since when the oldest has been.
    pub(super) fn check(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.free.len() == self.chunks.len() {
            (self.chunks, self.free) = Default::default();
        }
        let mut oldest = None;
        for chunk in &mut self.chunks {
            let since = match *chunk {
                Chunk::Taken => continue,
                Chunk::New => now,
                Chunk::Since(since) => since,
            };
            *chunk = Chunk::Since(since);
            oldest = Some(oldest.map_or(since, |oldest: Timestamp| oldest.min(since)));
        }
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_chunk_counts_from_the_first_look() {
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
