//! Periods in the text of a policy: `250ms`, `60s`, `1m`, `2h`, `1d`, `1w`.

/// Units with their length in microseconds, longest first; of equals, the canonical word first.
const UNITS: [(&str, u64); 12] = [
    ("w", 604_800_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("hour", 3_600_000_000),
    ("m", 60_000_000),
    ("min", 60_000_000),
    ("minute", 60_000_000),
    ("s", 1_000_000),
    ("sec", 1_000_000),
    ("second", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Microseconds; `None` for what is no period. A unit alone means one.
pub(super) fn parse(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let (_, length) = UNITS.into_iter().find(|(word, _)| *word == unit)?;
    let count: u64 = if count.is_empty() { 1 } else { count.parse().unwrap_or(u64::MAX) };
    Some(count.saturating_mul(length))
}

/// The largest unit that divides it.
pub(crate) fn format(micros: u64) -> String {
    let unit =
        UNITS.into_iter().find(|(_, length)| micros >= *length && micros.is_multiple_of(*length));
    let (word, length) = unit.unwrap_or(("s", 1_000_000));
    format!("{}{word}", micros / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_written_in_the_largest_unit_that_divides_it() {
        for (text, canonical) in [
            ("250ms", "250ms"),
            ("1500us", "1500us"),
            ("60s", "1m"),
            ("90s", "90s"),
            ("s", "1s"),
            ("minute", "1m"),
            ("5min", "5m"),
            ("120m", "2h"),
            ("24h", "1d"),
            ("14d", "2w"),
            ("366d", "366d"),
            ("0s", "0s"),
        ] {
            let micros = parse(text).unwrap();
            assert_eq!(format(micros), canonical);
            assert_eq!(parse(canonical), Some(micros));
        }
    }

    #[test]
    fn what_is_no_period_is_none() {
        for text in ["", "60", "1.5s", "-1s", "+1s", " 1s", "1S", "day", "1month", "1s1"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("99999999999999999999w"), Some(u64::MAX));
    }
}
