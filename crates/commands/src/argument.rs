//! Single arguments: keys and numbers.

use crate::{
    CommandError,
    limits::MAX_KEY,
    text::{decimal, quote},
};

/// Checks a key of an operation that takes units: 1 to 65 536 bytes. An empty key is an error, because it
/// is nearly always a missing value, and all clients would share one limit.
///
/// # Errors
/// [`CommandError::Key`] for any other length.
#[inline]
pub fn key(bytes: &[u8]) -> Result<&[u8], CommandError> {
    if bytes.is_empty() { Err(CommandError::Key(0)) } else { any_key(bytes) }
}

/// Checks a key that may be empty: redis-cell allows that, therefore it can be read and reset.
pub(crate) fn any_key(bytes: &[u8]) -> Result<&[u8], CommandError> {
    if bytes.len() <= MAX_KEY { Ok(bytes) } else { Err(CommandError::Key(bytes.len())) }
}

/// A whole number of `least..=most`, in plain decimal digits.
pub(crate) fn number(
    argument: &'static str,
    text: &[u8],
    least: u64,
    most: u64,
) -> Result<u64, CommandError> {
    span(argument, text, "", least, most)
}

/// A whole number of `least..=most`; `unit` names what it counts, such as ` of seconds`.
pub(crate) fn span(
    argument: &'static str,
    text: &[u8],
    unit: &'static str,
    least: u64,
    most: u64,
) -> Result<u64, CommandError> {
    let error = || CommandError::Number { argument, value: quote(text), unit, least, most };
    decimal(text).filter(|number| (least..=most).contains(number)).ok_or_else(error)
}

/// A whole number of `least..=u32::MAX`.
pub(crate) fn units(argument: &'static str, text: &[u8], least: u32) -> Result<u32, CommandError> {
    let number = number(argument, text, least.into(), u32::MAX.into())?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX)) // `number` checks the bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_bounds_are_inclusive() {
        for (text, fits) in [("1", false), ("2", true), ("4", true), ("5", false)] {
            assert_eq!(number("count", text.as_bytes(), 2, 4).is_ok(), fits, "{text}");
        }
        assert_eq!(units("count", b"4294967295", 0), Ok(u32::MAX));
        assert!(units("count", b"4294967296", 0).is_err());
    }
}
