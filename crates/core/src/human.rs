//! Spans of time, counts of units and texts of others, for people.

/// `text` with an escape, such as `\u{1b}`, in place of each character that a terminal obeys or does not show.
///
/// ```
/// use sluicegate_core::human::printable;
///
/// assert_eq!(printable("it's \u{1b}[31m für \u{202e}हिन्दी\n"), r"it's \u{1b}[31m für \u{202e}हिन्दी\n");
/// ```
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if is_shown(char) {
            shown.push(char);
        } else {
            shown.extend(char.escape_debug());
        }
    }
    shown
}

/// Whether a terminal shows a character, alone or on the one before it.
#[must_use]
pub fn is_shown(char: char) -> bool {
    // Behind another character, a string does not escape those that combine with it.
    let pair = String::from_iter(['x', char]);
    matches!(char, '\'' | '"' | '\\') || pair.escape_debug().nth(1) == Some(char)
}

/// A span in microseconds in few words, or as the fraction that it is where those would round it.
#[must_use]
pub fn span_of(micros: u64, parts: u64) -> String {
    let whole = micros / parts.max(1);
    let exact = micros.is_multiple_of(parts)
        && match whole {
            0..1_000_000 => true,
            1_000_000..60_000_000 => whole.is_multiple_of(1_000),
            60_000_000..3_600_000_000 => whole.is_multiple_of(1_000_000),
            3_600_000_000..86_400_000_000 => whole.is_multiple_of(60_000_000),
            _ => whole.is_multiple_of(3_600_000_000),
        };
    if exact { span(whole) } else { format!("{}/{parts}", span(micros)) }
}

/// A span in microseconds, rounded up to a readable precision: `250us`, `1.5ms`, `12.346s`, `3m 20s`, `2h 5m`, `3d
/// 4h`.
#[must_use]
pub fn span(micros: u64) -> String {
    const MILLI: u64 = 1_000;
    const SECOND: u64 = 1_000 * MILLI;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;

    // Rounded up first, so that 59.9999 s is a minute and not 60 seconds.
    let up = |unit: u64| micros.div_ceil(unit).saturating_mul(unit);
    if micros == 0 {
        "0s".to_owned()
    } else if micros < MILLI {
        format!("{micros}us")
    } else if micros < SECOND {
        decimal(micros, "ms")
    } else if up(MILLI) < MINUTE {
        decimal(micros.div_ceil(MILLI), "s")
    } else if up(SECOND) < HOUR {
        pair(up(SECOND), (MINUTE, "m"), (SECOND, "s"))
    } else if up(MINUTE) < DAY {
        pair(up(MINUTE), (HOUR, "h"), (MINUTE, "m"))
    } else {
        pair(up(HOUR), (DAY, "d"), (HOUR, "h"))
    }
}

/// Thousandths, without the zeros at their end.
fn decimal(thousandths: u64, unit: &str) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn pair(micros: u64, (large, word): (u64, &str), (small, small_word): (u64, &str)) -> String {
    let (count, rest) = (micros / large, micros % large / small);
    if rest == 0 { format!("{count}{word}") } else { format!("{count}{word} {rest}{small_word}") }
}

/// `1 unit`, `2 units`.
#[must_use]
pub fn units(count: u64) -> String {
    if count == 1 { "1 unit".to_owned() } else { format!("{count} units") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_is_rounded_up_to_what_is_worth_reading() {
        for (micros, expected) in [
            (0, "0s"),
            (250, "250us"),
            (1_500, "1.5ms"),
            (999_999, "999.999ms"),
            (2_000_000, "2s"),
            (12_345_001, "12.346s"),
            (59_999_001, "1m"),
            (200_000_000, "3m 20s"),
            (3_599_000_001, "1h"),
            (7_500_000_000, "2h 5m"),
            (86_400_000_000, "1d"),
            (273_600_000_000, "3d 4h"),
            (1 << 50, "13031d 6h"),
        ] {
            assert_eq!(span(micros), expected, "{micros}");
        }
        assert!(span(u64::MAX).ends_with('h'));
    }

    #[test]
    fn span_of_parts_that_would_be_rounded_is_a_fraction() {
        assert_eq!(span_of(60_000_000, 30), "2s");
        assert_eq!(span_of(60_000_000, 7), "1m/7");
        assert_eq!(span_of(1_000_000, 3_000_000), "1s/3000000");
        assert_eq!(span_of(86_400_000_000, 1000), "1d/1000");
        assert_eq!(span_of(86_400_000_000, 2), "12h");
    }
}
