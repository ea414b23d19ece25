//! Durations of requests as logs write them.

use super::LogError;

/// The unit of a duration, by the name of its field.
///
/// `_ms`, `_us` and `_ns` at the end of a name are units. Apache's `%D` and `%{us}T` are microseconds, and its
/// `%{ms}T` milliseconds. Envoy's `duration` is in milliseconds: it is beside a `start_time`, unlike that of Caddy.
/// Traefik's `Duration` is in nanoseconds. Anything else is in seconds, such as nginx's `$request_time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Second,
    Milli,
    Micro,
    Nano,
}

/// The units that a value may have, from the largest, as multiples of those of fields.
const OF_VALUES: [(&str, Unit, u64); 8] = [
    ("h", Unit::Second, 3600),
    ("m", Unit::Second, 60),
    ("s", Unit::Second, 1),
    ("ms", Unit::Milli, 1),
    ("us", Unit::Micro, 1),
    // With the micro sign, and with the Greek letter.
    ("\u{b5}s", Unit::Micro, 1),
    ("\u{3bc}s", Unit::Micro, 1),
    ("ns", Unit::Nano, 1),
];

impl Unit {
    /// The name of a field and its unit, from `NAME` or `NAME:UNIT`.
    pub(super) fn split(field: &str) -> Result<(&str, Option<Self>), LogError> {
        let Some((name, unit)) = field.rsplit_once(':') else { return Ok((field, None)) };
        let unit = match unit {
            "s" => Self::Second,
            "ms" => Self::Milli,
            "us" => Self::Micro,
            "ns" => Self::Nano,
            _ => return Err(LogError::Unit(field.to_owned())),
        };
        Ok((name, Some(unit)))
    }

    pub(super) fn of(field: &str, time_is_start: bool) -> Self {
        match field {
            "%D" | "%usT" => Self::Micro,
            "%msT" => Self::Milli,
            "duration" if time_is_start => Self::Milli,
            "Duration" => Self::Nano,
            _ if field.ends_with("_ms") => Self::Milli,
            _ if field.ends_with("_us") => Self::Micro,
            _ if field.ends_with("_ns") => Self::Nano,
            _ => Self::Second,
        }
    }

    /// The number of digits after the point of a number that are whole microseconds.
    const fn digits(self) -> usize {
        match self {
            Self::Second => 6,
            Self::Milli => 3,
            Self::Micro | Self::Nano => 0,
        }
    }
}

/// Whether a field has the time at which the request began: Apache's `%t` beside its durations, and `start_time`. Other
/// logs have the time at which it ended.
pub(super) fn time_is_start(time_field: &str, duration_field: &str) -> bool {
    duration_field.starts_with('%')
        || time_field.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("start"))
}

/// The longest duration, in microseconds: 366 days.
const MAX: u64 = 366 * 86_400_000_000;

/// A duration in whole microseconds, rounded down: a number of `unit`, or numbers with units of their own, such as
/// `12ms` and `1m2.5s`.
pub(super) fn parse(text: &[u8], unit: Unit) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    if text.ends_with(|it: char| it.is_ascii_digit()) {
        return number(text, unit);
    }
    let (mut rest, mut micros, mut units) = (text, 0_u64, &OF_VALUES[..]);
    loop {
        let end = rest.find(|it: char| !it.is_ascii_digit() && it != '.')?;
        let (value, behind) = rest.split_at(end);
        let end = behind.find(|it: char| it.is_ascii_digit()).unwrap_or(behind.len());
        let (name, behind) = behind.split_at(end);
        let at = units.iter().position(|(known, ..)| *known == name.trim_start())?;
        let (_, unit, factor) = units[at];
        micros = micros.checked_add(number(value, unit)?.checked_mul(factor)?)?;
        (rest, units) = (behind, &units[at + 1..]);
        if rest.is_empty() {
            return (micros <= MAX).then_some(micros);
        }
    }
}

fn number(text: &str, unit: Unit) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if [whole, fraction].iter().any(|it| it.is_empty() || !it.bytes().all(|it| it.is_ascii_digit()))
    {
        return None;
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(unit.digits());
    let number = digits
        .map(|digit| u64::from(digit - b'0'))
        .try_fold(whole.parse().ok()?, |sum: u64, digit| sum.checked_mul(10)?.checked_add(digit))?;
    let micros = if unit == Unit::Nano { number / 1000 } else { number };
    (micros <= MAX).then_some(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_unit_is_that_of_the_field() {
        for (time, duration, unit, starts) in [
            ("msec", "request_time", Unit::Second, false),
            ("time", "request_time_ms", Unit::Milli, false),
            ("ts", "duration", Unit::Second, false),
            ("start_time", "duration", Unit::Milli, true),
            ("StartUTC", "took_ns", Unit::Nano, true),
            ("StartUTC", "Duration", Unit::Nano, true),
            ("time_local", "%D", Unit::Micro, true),
            ("time_local", "%msT", Unit::Milli, true),
            ("time_local", "%T", Unit::Second, true),
        ] {
            let is_start = time_is_start(time, duration);
            assert_eq!((Unit::of(duration, is_start), is_start), (unit, starts), "{duration}");
        }
    }

    #[test]
    fn duration_unit_after_the_name_is_read() {
        for (text, name, unit) in [
            ("took", "took", None),
            ("took:ns", "took", Some(Unit::Nano)),
            ("a:b:s", "a:b", Some(Unit::Second)),
        ] {
            assert_eq!(Unit::split(text), Ok((name, unit)), "{text}");
        }
        for text in ["took:min", "took:", "took:MS", "a:b"] {
            assert_eq!(
                Unit::split(text).unwrap_err().to_string(),
                format!(
                    "unknown unit in `{text}`: expected `NAME` or `NAME:UNIT`, with s, ms, us or ns as the unit"
                )
            );
        }
    }

    #[test]
    fn duration_parse_gives_microseconds() {
        for (text, unit, micros) in [
            ("0.000", Unit::Second, Some(0)),
            ("1.25", Unit::Second, Some(1_250_000)),
            ("0.0000019", Unit::Second, Some(1)),
            ("17", Unit::Milli, Some(17_000)),
            ("17.5", Unit::Milli, Some(17_500)),
            ("17", Unit::Micro, Some(17)),
            ("1999", Unit::Nano, Some(1)),
            ("31622400", Unit::Second, Some(MAX)),
            ("31622401", Unit::Second, None),
            ("99999999999999999999", Unit::Nano, None),
            ("-", Unit::Second, None),
            ("-1", Unit::Second, None),
            ("", Unit::Second, None),
            ("1.", Unit::Second, None),
            ("1e3", Unit::Second, None),
            ("0.1, 0.2", Unit::Second, None),
            // The unit of the value counts, whatever that of the field is.
            ("12ms", Unit::Second, Some(12_000)),
            ("1.5s", Unit::Milli, Some(1_500_000)),
            ("357us", Unit::Second, Some(357)),
            ("357\u{b5}s", Unit::Second, Some(357)),
            ("357.9\u{3bc}s", Unit::Second, Some(357)),
            ("1999ns", Unit::Second, Some(1)),
            ("1m2.5s", Unit::Nano, Some(62_500_000)),
            ("1.5h", Unit::Second, Some(5_400_000_000)),
            ("8784h", Unit::Second, Some(MAX)),
            ("12 ms", Unit::Second, Some(12_000)),
            ("8784h1s", Unit::Second, None),
            ("5124095577h", Unit::Second, None),
            ("12min", Unit::Second, None),
            ("12MS", Unit::Second, None),
            ("1s2m", Unit::Second, None),
            ("1s1s", Unit::Second, None),
            ("1m5", Unit::Second, None),
            ("ms", Unit::Second, None),
            ("-5ms", Unit::Second, None),
            (".ms", Unit::Second, None),
            ("1.ms", Unit::Second, None),
        ] {
            assert_eq!(parse(text.as_bytes(), unit), micros, "{text}");
        }
    }
}
