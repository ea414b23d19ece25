//! Missing permissions of the user on one server, according to replies.
//!
//! A user without permission for one key may use another, and clients choose keys. Therefore rejected keys never
//! open the circuit breaker: every command is still sent. After `most` consecutive rejections the user may have
//! permission for no key (a wrong prefix): the store counts as unavailable until a command is applied, or for
//! [`LASTS`] after the last rejection.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::Timestamp;

/// How long the refusal of a key says something of other keys. A server that gets no questions since, for
/// it says that it is not ready, must get some again to see that it may be.
const LASTS: Duration = Duration::from_secs(10);

/// Counts questions in a row that the user may not ask.
#[derive(Debug)]
pub(crate) struct Permission {
    most: u32,
    refused: AtomicU32,
    /// Whether it may use none of the keys, as far as is known.
    is_barred: AtomicBool,
    /// Until when that holds without a further refusal, in microseconds.
    until: AtomicU64,
}

impl Permission {
    pub(super) const fn new(most: u32) -> Self {
        Self {
            most,
            refused: AtomicU32::new(0),
            is_barred: AtomicBool::new(false),
            until: AtomicU64::new(0),
        }
    }

    /// A question was refused.
    pub(super) fn refused(&self, now: Timestamp) {
        self.until.store((now + LASTS).as_micros(), Ordering::Relaxed);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether enough consecutive commands were rejected that all may be.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.refused.load(Ordering::Relaxed) >= self.most
    }

    /// Whether a question was refused since the last that was answered.
    pub(super) fn has_refusals(&self) -> bool {
        self.refused.load(Ordering::Relaxed) != 0
    }

    /// A question was answered.
    pub(super) fn answered(&self) {
        // The line is shared by all threads, so it is written only if it says something else.
        if self.has_refusals() {
            self.refused.store(0, Ordering::Relaxed);
        }
    }

    /// The user may use no key. Whether that is new.
    pub(super) fn bar(&self) -> bool {
        !self.is_barred.swap(true, Ordering::Relaxed)
    }

    /// The user may use some. Whether that is new.
    pub(super) fn unbar(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed) && self.is_barred.swap(false, Ordering::Relaxed)
    }

    /// Whether the last that was heard is that the user may use no key.
    pub(super) fn is_barred(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed)
    }

    /// Whether that may still be so.
    pub(super) fn is_barred_at(&self, now: Timestamp) -> bool {
        self.is_barred() && now.as_micros() < self.until.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_refusals_in_a_row_cast_doubt_until_an_answer() {
        let permission = Permission::new(2);
        let now = Timestamp::EPOCH;
        permission.refused(now);
        assert!(!permission.is_in_doubt());
        permission.answered();
        permission.refused(now);
        assert!(!permission.is_in_doubt());
        permission.refused(now);
        assert!(permission.is_in_doubt());
        permission.answered();
        assert!(!permission.is_in_doubt() && !permission.has_refusals());
    }

    #[test]
    fn permission_bar_ends_with_an_answer_or_without_refusals() {
        let permission = Permission::new(1);
        let now = Timestamp::EPOCH;
        permission.refused(now);
        assert!(permission.bar() && !permission.bar());
        assert!(permission.is_barred_at(now) && !permission.is_barred_at(now + LASTS));
        permission.refused(now + LASTS);
        assert!(permission.is_barred_at(now + LASTS));
        assert!(permission.unbar() && !permission.unbar() && !permission.is_barred_at(now));
    }
}
