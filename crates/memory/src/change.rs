//! Changes by a request: one type for operations on limits and on holds, so that there is one path for both.

use sluicegate_core::{
    Decision, Entry, HoldError, HoldOperation, Operation, OperationError, Policy, Timestamp, apply,
    apply_hold, apply_hold_in_place,
};

/// An operation on the entry of a key.
pub(crate) trait Change: Copy {
    /// Reason for which it is invalid.
    type Error;

    /// Applies it.
    fn apply(
        self,
        policy: &Policy,
        entry: &mut Option<Entry>,
        now: Timestamp,
    ) -> Result<Decision, Self::Error>;

    /// Applies it, and may leave an [idle](Entry::is_idle) entry.
    fn apply_in_place(
        self,
        policy: &Policy,
        entry: &mut Option<Entry>,
        now: Timestamp,
    ) -> Result<Decision, Self::Error> {
        self.apply(policy, entry, now)
    }

    /// Whether the entry has holds, and still has after it.
    fn keeps_holds(self, entry: &Entry) -> bool;

    /// Whether it never changes the entry.
    fn only_reads(self) -> bool;

    /// Whether it has happened already, and cannot be denied.
    fn has_happened(self) -> bool;
}

impl Change for Operation {
    type Error = OperationError;

    fn apply(
        self,
        policy: &Policy,
        entry: &mut Option<Entry>,
        now: Timestamp,
    ) -> Result<Decision, OperationError> {
        apply(policy, entry, now, self)
    }

    fn keeps_holds(self, _entry: &Entry) -> bool {
        false
    }

    fn only_reads(self) -> bool {
        matches!(
            self,
            Self::Peek(_)
                | Self::Take(0)
                | Self::Charge(0)
                | Self::Refund(0)
                | Self::Reserve { cost: 0, .. }
        )
    }

    fn has_happened(self) -> bool {
        matches!(self, Self::Charge(_) | Self::Refund(_) | Self::Reset)
    }
}

impl Change for HoldOperation<'_> {
    type Error = HoldError;

    fn apply(
        self,
        policy: &Policy,
        entry: &mut Option<Entry>,
        now: Timestamp,
    ) -> Result<Decision, HoldError> {
        apply_hold(policy, entry, now, self)
    }

    fn apply_in_place(
        self,
        policy: &Policy,
        entry: &mut Option<Entry>,
        now: Timestamp,
    ) -> Result<Decision, HoldError> {
        apply_hold_in_place(policy, entry, now, self)
    }

    fn keeps_holds(self, entry: &Entry) -> bool {
        // Holds that have expired may be the last ones: that is rare, and the entry then stays where it is.
        entry.open_holds() > usize::from(matches!(self, Self::Settle { .. }))
    }

    fn only_reads(self) -> bool {
        matches!(self, Self::Hold { cost: 0, .. })
    }

    fn has_happened(self) -> bool {
        false
    }
}
