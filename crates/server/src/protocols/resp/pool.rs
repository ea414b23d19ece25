//! Buffers that the connections of one worker share.
//!
//! A connection that waits for its client holds none: ten thousand idle clients cost no buffers. It
//! takes one to read into and one to write replies into, and gives each back when it is empty. Only a
//! few connections keep theirs, which saves them the way here.

use std::cell::{Cell, RefCell};

/// Bytes read at a time.
pub(super) const CHUNK: usize = 16 * 1024;
/// Upper bound on the bytes of an unfinished command that a connection keeps without a reservation.
pub(super) const SMALL: usize = 1024;
/// Upper bound on the bytes that a connection keeps of commands that have not run.
pub(super) const MAX_UNREAD: usize = 1024 * 1024;
/// Upper bound on the bytes that a connection keeps of commands behind one that waits (`SG.WAIT`).
pub(super) const MAX_READ_AHEAD: usize = 256 * 1024;
/// How many free buffers a worker keeps.
const MAX_FREE: usize = 16;
/// The largest buffer that is kept, in bytes.
const MAX_CAPACITY: usize = 128 * 1024;
/// How many connections of a worker keep their buffers.
const MAX_KEEPERS: usize = 64;
/// The largest buffer that such a connection keeps, in bytes.
pub(super) const MAX_KEPT: usize = 32 * 1024;

/// Free buffers.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
    keepers: Cell<usize>,
}

impl BufferPool {
    /// Whether one more connection may keep its buffers, until it [lets go](Self::let_go).
    pub(super) fn keep(&self) -> bool {
        let keeps = self.keepers.get() < MAX_KEEPERS;
        self.keepers.set(self.keepers.get() + usize::from(keeps));
        keeps
    }

    /// A connection that kept its buffers is gone.
    pub(super) fn let_go(&self) {
        self.keepers.set(self.keepers.get() - 1);
    }

    /// An empty buffer, with room for an unfinished command of [`SMALL`] bytes and a [`CHUNK`].
    #[inline]
    pub(super) fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(SMALL + CHUNK))
    }

    /// Takes a buffer back, whatever is in it.
    #[inline]
    pub(super) fn put(&self, mut buffer: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if (SMALL + CHUNK..=MAX_CAPACITY).contains(&buffer.capacity()) && free.len() < MAX_FREE {
            buffer.clear();
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_keeps_few_buffers_of_ordinary_size() {
        let pool = BufferPool::default();
        for capacity in [0, SMALL, MAX_CAPACITY + 1] {
            pool.put(Vec::with_capacity(capacity));
            assert!(pool.free.borrow().is_empty(), "{capacity}");
        }
        (0..MAX_FREE + 5).for_each(|_| pool.put(vec![1; SMALL + CHUNK]));
        assert_eq!(pool.free.borrow().len(), MAX_FREE);
        assert!(pool.take().is_empty());
        assert_eq!(pool.free.borrow().len(), MAX_FREE - 1);
    }
}
