//! The circles that are known.

/// Circles that are there for a reason: the files, and why. A circle of some of these files is allowed as well.
pub(super) const ALLOWED: &[(&[&str], &str)] = &[];

/// Circles that were there before this check, and have to go: none may grow, and one that is gone is removed here.
pub(super) const OLD: &[&[&str]] = &[];
