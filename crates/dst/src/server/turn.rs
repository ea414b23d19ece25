//! Bytes that the running connection has read in its turn, which ends when others run.

use std::cell::Cell;

thread_local! {
    static READ: Cell<usize> = const { Cell::new(0) };
}

/// A task begins to run. Every connection is a task.
#[cfg_attr(not(tokio_unstable), expect(dead_code, reason = "tokio does not report it"))]
pub(super) fn begin() {
    READ.set(0);
}

/// The task that runs reads bytes. Returns how many it has read in its turn.
pub(super) fn read(bytes: usize) -> usize {
    // Turns are unknown if tokio does not report them.
    if !cfg!(tokio_unstable) {
        return 0;
    }
    READ.set(READ.get() + bytes);
    READ.get()
}
