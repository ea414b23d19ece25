//! Missing permissions of the user on one server, according to replies.
//!
//! A user without permission for one key may use another, and clients choose keys. Therefore rejected keys never
//! open the circuit breaker: every command is still sent. After `max_rejections` consecutive rejections the user may have
//! permission for no key (a wrong prefix): the store counts as unavailable until a command is applied, or for
//! [`REJECTION_LIFETIME`] after the last rejection.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::Timestamp;

/// Time after the last rejection in which the store counts as unavailable. A server that is not ready gets no requests
/// from its clients, and must get some again to see that it is ready.
const REJECTION_LIFETIME: Duration = Duration::from_secs(10);

/// Counts consecutive commands that were rejected.
#[derive(Debug)]
pub(crate) struct Permission {
    max_rejections: u32,
    rejected: AtomicU32,
    /// Whether the user may use no key, as far as is known.
    is_barred: AtomicBool,
    /// The end of that without a further rejection, in microseconds.
    until: AtomicU64,
}

impl Permission {
    pub(super) const fn new(max_rejections: u32) -> Self {
        Self {
            max_rejections,
            rejected: AtomicU32::new(0),
            is_barred: AtomicBool::new(false),
            until: AtomicU64::new(0),
        }
    }

    /// A command was rejected.
    pub(super) fn record_rejection(&self, now: Timestamp) {
        self.until.store((now + REJECTION_LIFETIME).as_micros(), Ordering::Relaxed);
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether enough consecutive commands were rejected that all may be.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.rejected.load(Ordering::Relaxed) >= self.max_rejections
    }

    /// Whether a command was rejected since the last one that was applied.
    pub(super) fn has_rejections(&self) -> bool {
        self.rejected.load(Ordering::Relaxed) != 0
    }

    /// A command was applied.
    pub(super) fn answered(&self) {
        // All threads share the cache line, therefore it is written only if the value changes.
        if self.has_rejections() {
            self.rejected.store(0, Ordering::Relaxed);
        }
    }

    /// The user may use no key. Returns whether that is new.
    pub(super) fn bar(&self) -> bool {
        !self.is_barred.swap(true, Ordering::Relaxed)
    }

    /// The user may use some key. Returns whether that is new.
    pub(super) fn unbar(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed) && self.is_barred.swap(false, Ordering::Relaxed)
    }

    /// Whether the user may use no key, according to the last reply.
    pub(super) fn is_barred(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed)
    }

    /// Whether that may still be true at `now`.
    pub(super) fn is_barred_at(&self, now: Timestamp) -> bool {
        self.is_barred() && now.as_micros() < self.until.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_rejections_in_a_row_cast_doubt_until_an_answer() {
        let permission = Permission::new(2);
        let now = Timestamp::EPOCH;
        permission.record_rejection(now);
        assert!(!permission.is_in_doubt());
        permission.answered();
        permission.record_rejection(now);
        assert!(!permission.is_in_doubt());
        permission.record_rejection(now);
        assert!(permission.is_in_doubt());
        permission.answered();
        assert!(!permission.is_in_doubt() && !permission.has_rejections());
    }

    #[test]
    fn permission_bar_ends_with_an_answer_or_without_rejections() {
        let permission = Permission::new(1);
        let now = Timestamp::EPOCH;
        permission.record_rejection(now);
        assert!(permission.bar() && !permission.bar());
        assert!(permission.is_barred_at(now) && !permission.is_barred_at(now + REJECTION_LIFETIME));
        permission.record_rejection(now + REJECTION_LIFETIME);
        assert!(permission.is_barred_at(now + REJECTION_LIFETIME));
        assert!(permission.unbar() && !permission.unbar() && !permission.is_barred_at(now));
    }
}
