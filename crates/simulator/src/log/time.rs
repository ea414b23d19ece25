//! Times as logs write them, read by hand: this is most of the work on a line.

const SECOND: u64 = 1_000_000;
const DAY: i64 = 86_400;

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Microseconds since the Unix epoch, from any of the forms that logs have:
/// `10/Oct/2023:13:55:36 -0700` with or without brackets, RFC 3339 (`T` or a blank between, a
/// fraction, `Z` or an offset), and seconds, milliseconds, microseconds or nanoseconds since the
/// epoch, told apart by their digits, with a fraction.
pub(crate) fn parse(text: &[u8]) -> Option<u64> {
    let text = text.strip_prefix(b"[").unwrap_or(text);
    let text = text.strip_suffix(b"]").unwrap_or(text);
    match text {
        [_, _, b'/', ..] => common(text),
        [_, _, _, _, b'-', ..] => rfc3339(text),
        _ => epoch(text),
    }
}

/// `10/Oct/2023:13:55:36 -0700`, and a fraction of the second.
fn common(text: &[u8]) -> Option<u64> {
    let (day, rest) = (two(text)?, text.get(3..)?);
    let (month, rest) = rest.split_first_chunk::<3>()?;
    let month = MONTHS.iter().position(|known| *known == month)?;
    let [b'/', rest @ ..] = rest else { return None };
    let year = i64::from(two(rest)?) * 100 + i64::from(two(rest.get(2..)?)?);
    let [b':', rest @ ..] = rest.get(4..)? else { return None };
    let (seconds, micros, rest) = clock(rest)?;
    let offset = match rest {
        [] => 0,
        [b' ', rest @ ..] => offset(rest)?,
        _ => return None,
    };
    let month = u32::try_from(month).ok()? + 1;
    join(days(year, month, day)?, seconds - offset, micros)
}

/// `2023-10-10T13:55:36.123-07:00`.
fn rfc3339(text: &[u8]) -> Option<u64> {
    let year = i64::from(two(text)?) * 100 + i64::from(two(text.get(2..)?)?);
    let (b'-', month, b'-', day) =
        (text[4], two(text.get(5..)?)?, *text.get(7)?, two(text.get(8..)?)?)
    else {
        return None;
    };
    let [b'T' | b't' | b' ', rest @ ..] = text.get(10..)? else { return None };
    let (seconds, micros, rest) = clock(rest)?;
    let offset = match rest {
        [] | b"Z" | b"z" | b" UTC" => 0,
        rest => offset(rest)?,
    };
    join(days(year, month, day)?, seconds - offset, micros)
}

/// `13:55:36.123`: seconds of the day, microseconds, and what follows.
fn clock(text: &[u8]) -> Option<(i64, u64, &[u8])> {
    let (hour, minute, second) = (two(text)?, two(text.get(3..)?)?, two(text.get(6..)?)?);
    // A leap second is the next one's beginning.
    if text.get(2) != Some(&b':') || text.get(5) != Some(&b':') {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = i64::from(hour * 3600 + minute * 60 + second);
    let rest = &text[8..];
    let [b'.' | b',', rest @ ..] = rest else { return Some((seconds, 0, rest)) };
    let (micros, rest) = fraction(rest)?;
    Some((seconds, micros, rest))
}

/// Digits behind a decimal point, in microseconds; what is finer is cut off.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(length);
    let micros = (0..6).fold(0, |sum, index| {
        10 * sum + u64::from(digits.get(index).map_or(0, |digit| digit - b'0'))
    });
    (length > 0).then_some((micros, rest))
}

/// `-0700` or `-07:00`, in seconds.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match text {
        [sign, rest @ ..] if rest.len() == 4 => (sign, two(rest)?, two(&rest[2..])?),
        [sign, rest @ ..] if rest.len() == 5 && rest[2] == b':' => {
            (sign, two(rest)?, two(&rest[3..])?)
        }
        _ => return None,
    };
    let seconds = i64::from(hours * 3600 + minutes * 60);
    match sign {
        b'+' if minutes < 60 => Some(seconds),
        b'-' if minutes < 60 => Some(-seconds),
        _ => None,
    }
}

/// A number of seconds, milliseconds, microseconds or nanoseconds, which one its digits tell:
/// seconds have at most 11 until the year 5138.
fn epoch(text: &[u8]) -> Option<u64> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(length);
    if length == 0 || length > 19 {
        return None;
    }
    let whole = digits
        .iter()
        .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
    let (micros, rest) = match rest {
        [b'.', rest @ ..] => fraction(rest)?,
        rest => (0, rest),
    };
    if !rest.is_empty() {
        return None;
    }
    match length {
        ..=11 => whole.checked_mul(SECOND)?.checked_add(micros),
        12..=14 => whole.checked_mul(1000)?.checked_add(micros / 1000),
        15..=16 => Some(whole),
        _ => Some(whole / 1000),
    }
}

/// Two digits at the front.
fn two(text: &[u8]) -> Option<u32> {
    match text {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9', ..] => {
            Some(u32::from(tens - b'0') * 10 + u32::from(ones - b'0'))
        }
        _ => None,
    }
}

/// Days from the Unix epoch to a date, if there is such a date.
fn days(year: i64, month: u32, day: u32) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    // Years that begin in March, in eras of 400.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = i64::from((153 * month + 2) / 5 + day - 1);
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

fn join(days: i64, seconds: i64, micros: u64) -> Option<u64> {
    let seconds = u64::try_from(days * DAY + seconds).ok()?;
    seconds.checked_mul(SECOND)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_forms_are_read() {
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
        fn no_bytes_are_too_much(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&text);
        }

        #[test]
        fn every_day_follows_the_one_before(number in 0..200_000_i64) {
            // Walks the calendar the other way round: by asking which date that day is.
            let date = (1970..2600_i64)
                .flat_map(|year| (1..=12).map(move |month| (year, month)))
                .take_while(|(year, month)| days(*year, *month, 1).is_some_and(|it| it <= number))
                .last();
            let (year, month) = date.unwrap();
            let day = u32::try_from(number - days(year, month, 1).unwrap()).unwrap() + 1;
            prop_assert_eq!(days(year, month, day), Some(number));
        }
    }
}
