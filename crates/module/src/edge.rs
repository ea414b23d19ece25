//! The edge to the server: no panic crosses it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

use crate::{options, stats};

/// What was told to panic, by its name at the edge. Only with `test-panic yes`.
static ARMED: Mutex<Option<String>> = Mutex::new(None);

/// The answer where a panic was in its place.
pub(crate) const PANICKED: &str = "ERR sluicegate failed on this command, which is a mistake of \
                                   its own; the server's log has more";

/// What `body` answers; `otherwise` where it panics.
#[inline]
pub(crate) fn guard<T>(name: &str, otherwise: T, body: impl FnOnce() -> T) -> T {
    // Whatever a panic leaves half done is either the server's, and closed on the way out, or
    // written in one step.
    let body = AssertUnwindSafe(|| {
        if options::TEST_PANIC.get() {
            panic_if_armed(name);
        }
        body()
    });
    catch_unwind(body).unwrap_or_else(|_| {
        stats::PANICS.add();
        otherwise
    })
}

/// Lets the next call at the edge that has this name panic.
pub(crate) fn arm(name: &str) {
    if let Ok(mut armed) = ARMED.lock() {
        *armed = Some(name.to_owned());
    }
}

#[cold]
fn panic_if_armed(name: &str) {
    let mut armed = ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if armed.as_deref() == Some(name) {
        *armed = None;
        drop(armed);
        panic!("told to, by test-panic");
    }
}
