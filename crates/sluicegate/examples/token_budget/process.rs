//! A process that can be killed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use sluicegate::{AsStore, Limiter};

/// The connection of a process to the store that all processes share. After the process is killed, its requests are
/// discarded: Rust drops the values that a task owned, and an operating system does not.
#[derive(Debug)]
pub(crate) struct Process {
    killed: AtomicBool,
    store: Limiter,
    nowhere: Limiter,
}

impl Process {
    pub(crate) fn new(store: &Limiter) -> Arc<Self> {
        Arc::new(Self {
            killed: AtomicBool::new(false),
            store: store.clone(),
            nowhere: Limiter::in_memory(),
        })
    }

    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }
}

impl AsStore for Process {
    type Inner = Limiter;

    fn as_store(&self) -> &Limiter {
        if self.killed.load(Ordering::Relaxed) { &self.nowhere } else { &self.store }
    }
}
