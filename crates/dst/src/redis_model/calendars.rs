//! Calendars that a script asks for: it has none, and gets the windows around now as an argument.

use sluicegate_core::{Limit, Policy, Window};

/// Bytes of the five times behind the name of a calendar.
const TIMES: usize = 35;

/// The calendars of a policy: unit, length and name of the zone.
pub(super) fn names(policy: &Policy) -> Vec<Vec<u8>> {
    let name = |limit: &Limit| match limit {
        Limit::FixedWindow(window) => match window.window() {
            Window::Calendar { unit, zone } => {
                let length = u8::try_from(zone.len()).ok()?;
                Some([&[unit as u8, length], zone.as_bytes()].concat())
            }
            Window::Span { .. } => None,
        },
        _ => None,
    };
    policy.limits().iter().filter_map(name).collect()
}

/// Whether a calendar is among those given.
pub(super) fn is_given(name: &[u8], mut given: &[u8]) -> bool {
    while let Some(&length) = given.get(1) {
        let size = 2 + usize::from(length);
        if given.get(..size) == Some(name) {
            return true;
        }
        given = given.get(size + TIMES..).unwrap_or_default();
    }
    false
}
