//! The description of a limit in words.

use crate::human;

/// A limit in words that follow the labels "at once", "sustained" and "denied".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitSummary {
    /// The units that an idle key admits at once: "16 units after idling".
    pub at_once: String,
    /// The rate that it admits for ever: "30 units per 1m: one each 2s".
    pub sustained: String,
    /// The wait of a denied client: "waits 2s at most for 1 unit, 32s for 16".
    pub denied: String,
}

/// The text after the wait of a denied client, if denied requests may be recorded.
pub(crate) const fn counting_denied(all: bool) -> &'static str {
    if all { "; denied requests count too, and extend the wait" } else { "" }
}

/// The units that a bucket of `size` units admits at once.
pub(crate) fn bucket_at_once(size: u32, borrow: bool) -> String {
    let units = human::units(size.into());
    let more = if borrow { "; one request may take more, if 1 unit is available" } else { "" };
    format!("{units} after idling{more}")
}

/// `waits 2s at most for 1 unit, 32s for 16`: the waits for one unit and for a full bucket, in microseconds.
pub(crate) fn bucket_waits(one: &str, size: u32, full: u64) -> String {
    let more = if size > 1 { format!(", {} for {size}", human::span(full)) } else { String::new() };
    format!("waits {one} at most for {}{more}", human::units(1))
}
