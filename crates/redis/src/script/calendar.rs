//! Windows of the calendar around a time, for scripts, which have no calendar.

use sluicegate_core::{CalendarUnit, FixedWindow, Timestamp, Window};

/// A period of the calendar in a time zone, whose windows a script needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    /// Unit, length and name of the zone, as in the byte form.
    name: Vec<u8>,
    /// A limit with that window, by which the core computes boundaries.
    limit: FixedWindow,
}

impl Calendar {
    /// `None` for a zone that is unknown to the core.
    pub(super) fn new(unit: CalendarUnit, zone: &str) -> Option<Self> {
        let window = Window::Calendar { unit, zone: zone.to_owned() };
        let limit = FixedWindow::new(1, &window, false).ok()?;
        let mut name = vec![unit as u8, u8::try_from(zone.len()).ok()?];
        name.extend_from_slice(zone.as_bytes());
        Some(Self { name, limit })
    }

    /// The calendar of a name in the reply of a script.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        const UNITS: [CalendarUnit; 4] =
            [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];
        let (unit, zone) = (name.first()?, std::str::from_utf8(name.get(2..)?).ok()?);
        Self::new(*UNITS.get(usize::from(*unit))?, zone)
    }

    /// Appends the name, the starts of the window of `around`, of the one before and of the two after it, and the end of the
    /// last.
    fn boundaries(&self, around: Timestamp, out: &mut Vec<u8>) {
        let (start, end) = self.limit.bounds(around.as_micros());
        let before = start.checked_sub(1).map_or(start, |micros| self.limit.bounds(micros).0);
        let (_, after) = self.limit.bounds(end);
        out.extend_from_slice(&self.name);
        for boundary in [before, start, end, after, self.limit.bounds(after).1] {
            out.extend_from_slice(&boundary.to_le_bytes()[..7]);
        }
    }
}

/// The windows of these calendars around a time, as an argument of scripts.
pub(crate) fn boundaries<'a>(
    calendars: impl Iterator<Item = &'a Calendar>,
    around: Timestamp,
) -> Vec<u8> {
    let mut out = Vec::new();
    for calendar in calendars {
        calendar.boundaries(around, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_that_of_the_core() {
        // 2026-03-29, when clocks in Berlin went forward: a day of 23 hours.
        let calendar = Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap();
        let (start, end) = calendar.limit.bounds(1_774_785_600_000_000);
        assert_eq!(start, 1_774_738_800_000_000);
        assert_eq!(end - start, 23 * 3_600_000_000);
        let mut out = Vec::new();
        calendar.boundaries(Timestamp::saturating_from_micros(start), &mut out);
        assert_eq!(out[..15], *b"\0\x0dEurope/Berlin");
        assert_eq!(out[15..22], (start - 24 * 3_600_000_000).to_le_bytes()[..7]);
        assert_eq!(out[22..29], start.to_le_bytes()[..7]);
        assert_eq!(out[36..43], (end + 24 * 3_600_000_000).to_le_bytes()[..7]);
        assert_eq!(out[43..50], (end + 48 * 3_600_000_000).to_le_bytes()[..7]);
        assert_eq!(out.len(), 50);
    }

    #[test]
    fn named_finds_calendars_by_name() {
        let calendar = Calendar::new(CalendarUnit::Year, "Asia/Shanghai").unwrap();
        assert_eq!(Calendar::named(&calendar.name), Some(calendar));
        for wrong in [b"".as_slice(), b"\0", b"\x04\x03UTC", b"\0\x04Mars", b"\0\x01\xff"] {
            assert_eq!(Calendar::named(wrong), None);
        }
    }

    #[test]
    fn boundaries_exist_at_the_ends_of_time() {
        let calendar = Calendar::new(CalendarUnit::Month, "UTC").unwrap();
        for edge in [Timestamp::EPOCH, Timestamp::MAX] {
            let out = boundaries([calendar.clone()].iter(), edge);
            assert_eq!(out.len(), 5 + 35);
        }
    }
}
