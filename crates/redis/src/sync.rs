//! The synchronisation primitives of leases, which `shuttle` replaces.

#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(not(shuttle))]
use parking_lot::{Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(shuttle)]
use shuttle::sync::{Mutex, MutexGuard};

/// A mutex of `parking_lot` or `shuttle`.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    #[cfg(not(shuttle))]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    #[cfg(shuttle)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics while it holds a lock")
    }
}
