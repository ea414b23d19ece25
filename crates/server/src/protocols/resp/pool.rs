//! Buffers that the connections of one worker share.
//!
//! A connection that waits for its client has no buffer, so that ten thousand idle clients cost none. It takes one to read
//! into and one for replies, and returns each when it is empty. Only a few connections keep theirs, which is faster.

use std::cell::{Cell, RefCell};

use crate::budgets::buffers::NO_MEMORY;

/// Bytes read at a time.
pub(super) const CHUNK: usize = 16 * 1024;
/// Upper bound on the bytes of an unfinished command that a connection keeps without a reservation.
pub(super) const SMALL: usize = 1024;
/// Upper bound on the bytes that a connection keeps of commands that have not run.
pub(super) const MAX_UNREAD: usize = 1024 * 1024;
/// Upper bound on the bytes that a connection keeps of commands behind one that waits (`SG.WAIT`).
pub(super) const MAX_READ_AHEAD: usize = 256 * 1024;
/// Upper bound on the free buffers of a worker.
const MAX_FREE: usize = 16;
/// Upper bound on the bytes of a free buffer.
const MAX_CAPACITY: usize = 128 * 1024;
/// Upper bound on the connections of a worker that keep their buffers.
const MAX_KEEPERS: usize = 64;
/// Upper bound on the bytes of a buffer that such a connection keeps.
pub(super) const MAX_KEPT: usize = 32 * 1024;

/// Why the server drops what a client sends while it waits.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Overrun {
    #[error("ERR Protocol error: more than {MAX_READ_AHEAD} bytes behind a command that waits")]
    TooLong,
    #[error("{NO_MEMORY}")]
    NoMemory,
}

/// Free buffers.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
    keepers: Cell<usize>,
}

impl BufferPool {
    /// Whether another connection may keep its buffers, until [`remove_keeper`](Self::remove_keeper).
    pub(super) fn try_add_keeper(&self) -> bool {
        let keeps = self.keepers.get() < MAX_KEEPERS;
        self.keepers.set(self.keepers.get() + usize::from(keeps));
        keeps
    }

    /// A connection that kept its buffers has ended.
    pub(super) fn remove_keeper(&self) {
        self.keepers.set(self.keepers.get() - 1);
    }

    /// An empty buffer, with room for an unfinished command of [`SMALL`] bytes and a [`CHUNK`].
    #[inline]
    pub(super) fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(SMALL + CHUNK))
    }

    /// Returns a buffer. Its contents are dropped.
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
