//! Periods in the text of a policy: `250ms`, `60s`, `1m`, `2h`, `1d`, `1w`.

/// Lengths of units in microseconds, longest first, each with its words, the canonical one first.
const UNITS: [(u64, &[&str]); 7] = [
    (604_800_000_000, &["w", "week", "weeks"]),
    (86_400_000_000, &["d", "day", "days"]),
    (3_600_000_000, &["h", "hr", "hrs", "hour", "hours"]),
    (60_000_000, &["m", "min", "mins", "minute", "minutes"]),
    (1_000_000, &["s", "sec", "secs", "second", "seconds"]),
    (1_000, &["ms", "msec", "millisecond", "milliseconds"]),
    (1, &["us", "microsecond", "microseconds"]),
];
/// Longest period that a hint repeats.
const MAX_HINT: usize = 20;
/// Without a number these are periods of the calendar.
const CALENDAR: [(&str, &str); 4] =
    [("day", "1d"), ("week", "1w"), ("month", "30d"), ("year", "365d")];

/// The microseconds of a period such as `250ms`; `None` for what is not one. A unit alone means one.
///
/// ```
/// assert_eq!(sluicegate_core::parse_period("2h"), Some(7_200_000_000));
/// ```
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let (count, unit) = split(text);
    // Some write `M` for months.
    if unit == "M" || (count.is_empty() && calendar(unit).is_some()) {
        return None;
    }
    let is_unit = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(unit));
    let (length, _) = UNITS.into_iter().find(|(_, words)| is_unit(words))?;
    let count: u64 = if count.is_empty() { 1 } else { count.parse().unwrap_or(u64::MAX) };
    Some(count.saturating_mul(length))
}

/// The largest unit that divides it.
pub(crate) fn format(micros: u64) -> String {
    let divides = |length: &u64| micros >= *length && micros.is_multiple_of(*length);
    let unit = UNITS.into_iter().find(|(length, _)| divides(length));
    unit.map_or_else(
        || "0s".to_owned(),
        |(length, words)| format!("{}{}", micros / length, words[0]),
    )
}

/// The calendar word for a unit, in any case, singular or plural, with a similar duration.
pub(crate) fn calendar(unit: &str) -> Option<(&'static str, &'static str)> {
    CALENDAR.into_iter().find(|(word, _)| {
        let plural = unit.len() == word.len() + 1 && unit.ends_with(['s', 'S']);
        unit.get(..unit.len() - usize::from(plural)).is_some_and(|it| it.eq_ignore_ascii_case(word))
    })
}

/// The text after "expected" for the invalid period `text`.
pub(crate) fn expected(text: &str) -> String {
    let (count, unit) = split(text);
    if unit.is_empty() && (1..=9).contains(&count.len()) {
        return format!("expected a duration such as `{text}s`");
    }
    if unit == "M" {
        return "expected `m` for minutes, or days such as `30d` for a month".to_owned();
    }
    if let Some((word, duration)) = calendar(unit) {
        return format!(
            "expected a duration such as `{duration}`, or `{word}` with `fixed-window`"
        );
    }
    let joined: String = text.split(' ').collect();
    match parse(&joined) {
        Some(_) if joined.len() <= MAX_HINT => {
            format!("expected it without spaces, as in `{joined}`")
        }
        _ => "expected a whole number with a unit, such as `250ms`, `60s`, `1m`, `2h` or `1d`"
            .to_owned(),
    }
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_is_written_in_the_largest_unit_that_divides_it() {
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
    fn period_common_spellings_are_read() {
        for (text, canonical) in [
            ("1minute", "1m"),
            ("1minutes", "1m"),
            ("2mins", "2m"),
            ("1hr", "1h"),
            ("2hours", "2h"),
            ("1day", "1d"),
            ("7DAYS", "1w"),
            ("1week", "1w"),
            ("sec", "1s"),
            ("60S", "1m"),
            ("60Seconds", "1m"),
            ("250MS", "250ms"),
            ("5milliseconds", "5ms"),
        ] {
            assert_eq!(parse(text).map(format).as_deref(), Some(canonical), "{text}");
        }
    }

    #[test]
    fn period_invalid_is_none() {
        for text in [
            "", "60", "1.5s", "-1s", "+1s", " 1s", "1M", "M", "day", "Days", "week", "1month",
            "1s1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("99999999999999999999w"), Some(u64::MAX));
    }
}
