//! The decimal numbers of RESP headers, read strictly: no `+`, no spaces, no leading zeros.

use crate::ProtocolError;

/// Length at which an unfinished number is rejected: any `i64` and its `\r` are shorter.
///
/// Redis waits for 64 KiB here. The tighter bound also caps the bytes that are read twice when a header arrives byte
/// by byte.
pub(crate) const MAX_NUMBER: usize = 32;

/// Reads `number\r\n` from the front: the number and the bytes taken, `None` if it has not ended.
///
/// # Errors
/// `malformed` for anything else, `endless` if no end comes within [`MAX_NUMBER`] bytes.
#[inline]
pub(crate) fn number(
    bytes: &[u8],
    malformed: ProtocolError,
    endless: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    // Most headers of most commands are one or two digits.
    match *bytes {
        [one @ b'0'..=b'9', b'\r', b'\n', ..] => return Ok(Some((i64::from(one - b'0'), 3))),
        [ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            return Ok(Some((i64::from((ten - b'0') * 10 + (one - b'0')), 4)));
        }
        _ => {}
    }
    let window = &bytes[..bytes.len().min(MAX_NUMBER)];
    let Some(end) = window.iter().position(|&byte| byte == b'\r') else {
        return if bytes.len() < MAX_NUMBER { Ok(None) } else { Err(endless) };
    };
    match bytes.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => {
            integer(&window[..end]).map(|number| Some((number, end + 2))).ok_or(malformed)
        }
        Some(_) => Err(malformed),
    }
}

/// The whole of `text` as a number in its only canonical form.
fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // Counted below zero, because the range of `i64` has one more value there.
    let number = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_sub(digit)
    })?;
    if negative { Some(number) } else { number.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MALFORMED: ProtocolError = ProtocolError::InvalidBulkLength;
    const ENDLESS: ProtocolError = ProtocolError::TooBigBulkCount;

    fn read(text: &str) -> Result<Option<(i64, usize)>, ProtocolError> {
        number(text.as_bytes(), MALFORMED, ENDLESS)
    }

    #[test]
    fn number_canonical_is_read() {
        for value in [0, 1, 9, 10, 99, 100, 1024, -1, -10, i64::MAX, i64::MIN] {
            let text = format!("{value}\r\n");
            assert_eq!(read(&text), Ok(Some((value, text.len()))));
            for cut in 0..text.len() {
                assert_eq!(read(&text[..cut]), Ok(None), "{value} cut at {cut}");
            }
        }
    }

    #[test]
    fn number_other_spelling_is_malformed() {
        let beyond = ["9223372036854775808", "-9223372036854775809"];
        let odd = ["", "+1", " 1", "1 ", "01", "00", "-0", "-01", "-", "--1", "1a", "0x1", "1\n"];
        for text in odd.into_iter().chain(beyond) {
            assert_eq!(read(&format!("{text}\r\n")), Err(MALFORMED), "{text:?}");
        }
        assert_eq!(read("1\rx"), Err(MALFORMED));
        assert_eq!(read("12\rx"), Err(MALFORMED));
    }

    #[test]
    fn number_without_end_is_an_error() {
        assert_eq!(read(&"1".repeat(MAX_NUMBER - 1)), Ok(None));
        assert_eq!(read(&"1".repeat(MAX_NUMBER)), Err(ENDLESS));
        assert_eq!(read(&format!("{}\r\n", "1".repeat(MAX_NUMBER))), Err(ENDLESS));
        assert_eq!(read(&format!("{}\r\n", "1".repeat(MAX_NUMBER - 1))), Err(MALFORMED));
    }
}
