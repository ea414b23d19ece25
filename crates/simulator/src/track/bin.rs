//! Counts of one span of time.

use super::sliding::Levels;

/// The counts of one span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Requests.
    pub offered: u64,
    /// Allowed requests, with or without a delay.
    pub admitted: u64,
    /// Denied requests.
    pub denied: u64,
    /// Allowed requests with a delay.
    pub delayed: u64,
    /// Requests sent in this span, after their delay.
    pub sent: u64,
    /// Remaining units of the tracked key at the start of the span, and the minimum in it.
    pub left: Option<(u32, u32)>,
    /// Maximum of units that the tracked key sent in a period that ends here.
    pub levels: Levels,
}

impl Bin {
    /// Adds the counts of a later span.
    pub(super) fn join(&mut self, later: &Self) {
        self.offered += later.offered;
        self.admitted += later.admitted;
        self.denied += later.denied;
        self.delayed += later.delayed;
        self.sent += later.sent;
        self.raise(&later.levels);
        self.left = match (self.left, later.left) {
            (Some((first, least)), Some((_, other))) => Some((first, least.min(other))),
            (one, other) => one.or(other),
        };
    }

    pub(super) fn leave(&mut self, left: u32) {
        let (first, least) = self.left.unwrap_or((left, left));
        self.left = Some((first, least.min(left)));
    }

    pub(super) fn raise(&mut self, levels: &Levels) {
        for (level, other) in self.levels.iter_mut().zip(levels) {
            level.units = level.units.max(other.units);
            level.exceeds |= other.exceeds;
        }
    }
}
