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

    /// Whether it may add usage, and so a key.
    fn adds(self) -> bool;

    /// Whether the entry may need more memory after it.
    fn lengthens(self, entry: &Entry, now: Timestamp) -> bool;

    /// Whether the entry has holds, and still has after it.
    fn keeps_holds(self, entry: &Entry) -> bool;

    /// Whether it never changes the entry.
    fn only_reads(self) -> bool;

    /// Whether it leaves no entry.
    fn removes(self) -> bool;

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

    fn adds(self) -> bool {
        matches!(self, Self::Take(1..) | Self::Charge(1..) | Self::Reserve { cost: 1.., .. })
    }

    fn lengthens(self, entry: &Entry, _now: Timestamp) -> bool {
        entry.grows()
    }

    fn keeps_holds(self, _entry: &Entry) -> bool {
        false
    }

    fn only_reads(self) -> bool {
        !self.adds() && !matches!(self, Self::Refund(1..) | Self::Reset)
    }

    fn removes(self) -> bool {
        matches!(self, Self::Reset)
    }

    fn has_happened(self) -> bool {
        matches!(self, Self::Charge(_) | Self::Refund(_))
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

    fn adds(self) -> bool {
        matches!(self, Self::Hold { cost: 1.., .. })
    }

    fn lengthens(self, entry: &Entry, now: Timestamp) -> bool {
        !entry.has_open_hold(self.id(), now)
    }

    fn keeps_holds(self, entry: &Entry) -> bool {
        // Holds that have expired may be the last ones: that is rare, and the entry then stays where it is.
        entry.open_holds() > usize::from(matches!(self, Self::Settle { .. }))
    }

    fn only_reads(self) -> bool {
        matches!(self, Self::Hold { cost: 0, .. })
    }

    fn removes(self) -> bool {
        false
    }

    fn has_happened(self) -> bool {
        false
    }
}
