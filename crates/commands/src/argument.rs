//! Single arguments: keys, numbers, policies, and how a wrong one is shown.

use sluicegate_core::Policy;

use crate::{CommandError, throttle::policy as throttle};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 65_536;

/// So many bytes of an argument are shown in an error.
const SHOWN: usize = 40;

/// `bytes` as an error shows them: printable ASCII, and cut where they are long.
///
/// ```
/// assert_eq!(sluicegate_commands::shown(b"it's\r\n\xff"), r"it's\r\n\xff");
/// assert_eq!(sluicegate_commands::shown(&[b'x'; 41]), "x".repeat(40) + "...");
/// ```
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in &bytes[..bytes.len().min(SHOWN)] {
        match byte {
            b'\'' | b'"' => text.push(char::from(*byte)),
            other => text.extend(other.escape_ascii().map(char::from)),
        }
    }
    if bytes.len() > SHOWN {
        text.push_str("...");
    }
    text
}

/// A key that units may be asked of: 1 to 65 536 bytes. An empty one is an error, because it is
/// nearly always a value that is missing, under which all clients would share one limit.
///
/// # Errors
/// [`CommandError::Key`] for any other length.
#[inline]
pub fn key(bytes: &[u8]) -> Result<&[u8], CommandError> {
    if bytes.is_empty() { Err(CommandError::Key(0)) } else { any_key(bytes) }
}

/// A key that may be empty: redis-cell allows it, so it may also be read and reset.
pub(crate) fn any_key(bytes: &[u8]) -> Result<&[u8], CommandError> {
    if bytes.len() <= MAX_KEY { Ok(bytes) } else { Err(CommandError::Key(bytes.len())) }
}

/// The policy of a request as its arguments say it: to be parsed, or to be known by its bytes.
///
/// ```
/// use sluicegate_commands::PolicyText;
///
/// let text = PolicyText::Text(b"gcra:30/60s:burst=16");
/// let numbers = PolicyText::Throttle { max_burst: b"15", count: b"30", period: b"60" };
/// assert_eq!(text.parse()?, numbers.parse()?);
/// # Ok::<(), sluicegate_commands::CommandError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyText<'a> {
    /// A policy text.
    Text(&'a [u8]),
    /// The numbers of `CL.THROTTLE`, which say a single gcra limit.
    Throttle {
        /// One less than the burst.
        max_burst: &'a [u8],
        /// Units per period.
        count: &'a [u8],
        /// In seconds.
        period: &'a [u8],
    },
}

impl<'a> PolicyText<'a> {
    /// The name that it says instead: `gold` for `@gold`. What it stands for, only a server knows
    /// that has rules.
    #[must_use]
    pub fn name(self) -> Option<&'a [u8]> {
        match self {
            Self::Text(text) => text.strip_prefix(b"@"),
            Self::Throttle { .. } => None,
        }
    }

    /// The policy that it says.
    ///
    /// # Errors
    /// [`CommandError`] for arguments that say none.
    pub fn parse(self) -> Result<Policy, CommandError> {
        match self {
            Self::Text([b'@', name @ ..]) => Err(CommandError::NoRules(shown(name))),
            Self::Text(text) => policy(text),
            Self::Throttle { max_burst, count, period } => throttle(max_burst, count, period),
        }
    }
}

/// The policy that a text says.
fn policy(text: &[u8]) -> Result<Policy, CommandError> {
    let text = std::str::from_utf8(text)
        .map_err(|error| CommandError::PolicyEncoding(error.valid_up_to()))?;
    Ok(text.parse::<Policy>()?)
}

/// A whole number of `least..=most`, in decimal digits: no sign, no space, no leading zero.
pub(crate) fn number(
    argument: &'static str,
    text: &[u8],
    least: u64,
    most: u64,
) -> Result<u64, CommandError> {
    let wrong = || CommandError::Number { argument, value: shown(text), unit: "", least, most };
    digits(text).filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
}

/// A whole number of microseconds or of another `unit`.
pub(crate) fn span(
    argument: &'static str,
    text: &[u8],
    unit: &'static str,
    least: u64,
    most: u64,
) -> Result<u64, CommandError> {
    number(argument, text, least, most).map_err(|error| match error {
        CommandError::Number { argument, value, least, most, .. } => {
            CommandError::Number { argument, value, unit, least, most }
        }
        other => other,
    })
}

/// A whole number of `least..=u32::MAX`.
pub(crate) fn units(argument: &'static str, text: &[u8], least: u32) -> Result<u32, CommandError> {
    let number = number(argument, text, least.into(), u32::MAX.into())?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX)) // it was checked
}

fn digits(text: &[u8]) -> Option<u64> {
    match text {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] => text.iter().try_fold(0_u64, |number, &byte| {
            let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9)?;
            number.checked_mul(10)?.checked_add(digit.into())
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_plain_decimal() {
        let table: [(&[u8], Option<u64>); 16] = [
            (b"0", Some(0)),
            (b"7", Some(7)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"99999999999999999999999", None),
            (b"", None),
            (b"00", None),
            (b"01", None),
            (b"+5", None),
            (b"-0", None),
            (b"-5", None),
            (b" 5", None),
            (b"5 ", None),
            (b"5.0", None),
            (b"0x5", None),
            (b"5\0", None),
        ];
        for (text, expected) in table {
            assert_eq!(digits(text), expected, "{}", shown(text));
        }
    }

    #[test]
    fn bounds_are_inclusive() {
        for (text, fits) in [("1", false), ("2", true), ("4", true), ("5", false)] {
            assert_eq!(number("count", text.as_bytes(), 2, 4).is_ok(), fits, "{text}");
        }
        assert_eq!(units("count", b"4294967295", 0), Ok(u32::MAX));
        assert!(units("count", b"4294967296", 0).is_err());
    }
}
