//! The boundary to the server: no panic crosses it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::stats;

/// The entry that is to panic, by its name. Only with `test-panic yes`.
static ARMED: Mutex<Option<String>> = Mutex::new(None);

/// Whether [`ARMED`] is set, so that other calls take no lock.
static IS_ARMED: AtomicBool = AtomicBool::new(false);

/// The reply to a command that panicked.
pub(crate) const PANICKED: &str = "ERR internal error in sluicegate: see the server's log";

/// Returns the result of `body`, or `otherwise` if it panics.
#[inline]
pub(crate) fn guard<T>(name: &str, otherwise: T, body: impl FnOnce() -> T) -> T {
    // A panic leaves nothing half done: handles of the server are closed by `Drop`, and the rest is written in
    // one step.
    let body = AssertUnwindSafe(|| {
        if IS_ARMED.load(Ordering::Relaxed) {
            panic_if_armed(name);
        }
        body()
    });
    catch_unwind(body).unwrap_or_else(|_| {
        stats::PANICS.add();
        otherwise
    })
}

/// Makes the next call of the entry `name` panic.
pub(crate) fn arm(name: &str) {
    if let Ok(mut armed) = ARMED.lock() {
        *armed = Some(name.to_owned());
        IS_ARMED.store(true, Ordering::Relaxed);
    }
}

#[cold]
fn panic_if_armed(name: &str) {
    let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    if armed.as_deref() == Some(name) {
        *armed = None;
        IS_ARMED.store(false, Ordering::Relaxed);
        drop(armed);
        panic!("on request, by test-panic");
    }
}
