//! Times as logs write them.

use jiff::{
    civil::DateTime,
    fmt::{strtime, temporal::DateTimeParser},
    tz::Offset,
};

/// Microseconds since the Unix epoch, from any of the forms that logs have:
/// `10/Oct/2023:13:55:36 -0700` with or without brackets, RFC 3339 (`T` or a blank between, a
/// fraction, `Z` or an offset), and seconds, milliseconds, microseconds or nanoseconds since the
/// epoch, distinguished by their digits, with a fraction.
pub(crate) fn parse(text: &[u8]) -> Option<u64> {
    let text = text.strip_prefix(b"[").unwrap_or(text);
    let text = text.strip_suffix(b"]").unwrap_or(text);
    match text {
        [_, _, b'/', ..] => common(text),
        [_, _, _, _, b'-', ..] => rfc3339(text),
        _ => epoch(text),
    }
}

/// `10/Oct/2000:13:55:36 -0700`, and a fraction of the second.
fn common(text: &[u8]) -> Option<u64> {
    // Hours, minutes and seconds, which the parser would read with fewer digits.
    let has_digits = |at| {
        let digits: Option<&[u8]> = text.get(at..at + 2);
        digits.is_some_and(|it| it.iter().all(u8::is_ascii_digit))
    };
    if ![12, 15, 18].into_iter().all(has_digits) {
        return None;
    }
    let formats = ["%d/%b/%Y:%H:%M:%S%.f %z", "%d/%b/%Y:%H:%M:%S%.f"];
    let time = formats.into_iter().find_map(|format| strtime::parse(format, text).ok())?;
    micros(time.to_datetime().ok()?, time.offset())
}

/// `2023-10-10T13:55:36.123-07:00`.
fn rfc3339(text: &[u8]) -> Option<u64> {
    const PARSER: DateTimeParser = DateTimeParser::new();
    let pieces = PARSER.parse_pieces(text.strip_suffix(b" UTC").unwrap_or(text)).ok()?;
    micros(pieces.date().to_datetime(pieces.time()?), pieces.to_numeric_offset())
}

/// A time without an offset is in UTC.
fn micros(time: DateTime, offset: Option<Offset>) -> Option<u64> {
    let time = offset.unwrap_or(Offset::UTC).to_timestamp(time).ok()?;
    u64::try_from(time.as_microsecond()).ok()
}

/// Whether `text` is a time since the epoch, and not a duration: it has as many digits as seconds have since 2001.
pub(super) fn is_epoch(text: &[u8]) -> bool {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count() >= 10
}

/// A number of seconds, milliseconds, microseconds or nanoseconds, by its number of digits: seconds have at most 11
/// until the year 5138.
fn epoch(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if [whole, fraction].iter().any(|it| it.is_empty() || !it.bytes().all(|it| it.is_ascii_digit()))
    {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let micros = digits.fold(0, |sum, digit| 10 * sum + u64::from(digit - b'0'));
    match whole.len() {
        ..=11 => number.checked_mul(1_000_000)?.checked_add(micros),
        12..=14 => number.checked_mul(1000)?.checked_add(micros / 1000),
        15..=16 => Some(number),
        17..=19 => Some(number / 1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_all_forms_are_read() {
        for (text, micros) in [
            ("10/Oct/2000:13:55:36 -0700", Some(971_211_336_000_000)),
            ("[10/Oct/2000:13:55:36.5 -0700]", Some(971_211_336_500_000)),
            ("10/Oct/2000:20:55:36", Some(971_211_336_000_000)),
            ("2000-10-10T20:55:36Z", Some(971_211_336_000_000)),
            ("2000-10-10 20:55:36,123456789", Some(971_211_336_123_456)),
            ("2000-10-10T22:25:36.000001+01:30", Some(971_211_336_000_001)),
            ("2000-02-29T00:00:00Z", Some(951_782_400_000_000)),
            ("971211336", Some(971_211_336_000_000)),
            ("971211336.123", Some(971_211_336_123_000)),
            ("1700000000123", Some(1_700_000_000_123_000)),
            ("1700000000123456", Some(1_700_000_000_123_456)),
            ("1700000000123456789", Some(1_700_000_000_123_456)),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T00:00:00+00:01", None),
            ("1900-02-29T00:00:00Z", None),
            ("2023-13-01T00:00:00Z", None),
            ("31/Apr/2023:00:00:00 +0000", None),
            ("10/Oct/2000:24:00:00 +0000", None),
            ("10/Okt/2000:13:55:36 +0000", None),
            ("10/Oct/2000:13:55:36 0000", None),
            ("10/Oct/2000:13:55", None),
            ("10/Oct/2000:1:55:36 +0000", None),
            ("10/Oct/2000:13:5:36 +0000", None),
            ("10/Oct/2000:13:55: 6 +0000", None),
            ("99999999999999999999", None),
            ("12.", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(parse(text.as_bytes()), micros, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parse_any_bytes_do_not_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&text);
        }
    }
}
