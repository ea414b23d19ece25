//! The decimal numbers of RESP: read strictly (no `+`, no spaces, no leading zeros), and written as lines.
//!
//! A server writes five or seven numbers per reply, most of them short: up to four digits are two pairs from a table.
//! Eight fit into one word, and three multiplications split a number below 10^8 into them, each for all its lanes at
//! once: 4 + 4 digits, 2 + 2 + 2 + 2, then one per byte. (The idea is SIMD within a register: Lamport, "Multiple byte
//! processing with full-word instructions", 1975.) With `itoa` for all, a reply of seven numbers takes 368 instead of
//! 270 instructions, a tenth of all that a pipelined `SG.TAKE` takes; for longer numbers, `itoa` is faster.

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

/// Maximum length of a line: its kind, the digits of `i64::MIN`, its sign, `\r\n`.
pub(crate) const MAX_LINE: usize = 1 + 20 + 2;
/// Space for a line, and for the zeros that may be written after it.
pub(crate) const LINE_CAPACITY: usize = 32;

const EIGHT: u32 = 100_000_000;
/// Eight times `0`.
const ZEROS: u64 = 0x3030_3030_3030_3030;
/// `\r\n`.
const END: u64 = 0x0a0d;

/// Writes a line of `kind` and `value` at `at` of `lines`, where [`LINE_CAPACITY`] bytes are free. Returns
/// its end.
#[inline]
pub(crate) fn line(lines: &mut [u8], at: usize, kind: u8, value: i64) -> usize {
    // Most numbers of replies are one digit.
    if let Ok(digit @ 0..=9) = u8::try_from(value) {
        lines[at..at + 4].copy_from_slice(&[kind, b'0' + digit, b'\r', b'\n']);
        return at + 4;
    }
    if value == -1 {
        lines[at..at + 5].copy_from_slice(&[kind, b'-', b'1', b'\r', b'\n']);
        return at + 5;
    }
    other(lines, at, kind, value)
}

/// A line of more than one digit, or of a negative number.
#[inline(never)]
fn other(lines: &mut [u8], at: usize, kind: u8, value: i64) -> usize {
    match u32::try_from(value) {
        Ok(value @ ..10_000) => {
            let digits = pair(value / 100) | pair(value % 100) << 16;
            let length = 4 - u32::from(value < 1000) - u32::from(value < 100);
            let text = digits >> (8 * (4 - length));
            let line = u64::from(kind) | text << 8 | END << (8 * (length + 1));
            lines[at..at + 8].copy_from_slice(&line.to_le_bytes());
            at + length as usize + 3
        }
        Ok(value @ ..EIGHT) => {
            let (text, length) = text(u64::from(value));
            let line = &mut lines[at..at + 16];
            line[0] = kind;
            line[1..9].copy_from_slice(&text.to_le_bytes());
            line[1 + length..3 + length].copy_from_slice(b"\r\n");
            at + length + 3
        }
        _ => long(lines, at, kind, value),
    }
}

/// The two digits of `value`, below 100, the first in the lowest byte.
#[inline]
fn pair(value: u32) -> u64 {
    const PAIRS: [[u8; 2]; 100] = {
        let (mut pairs, mut value) = ([[b'0'; 2]; 100], 0);
        let mut first = b'0';
        while value < 100 {
            pairs[value] = [first, b'0'];
            let mut more = 1;
            while more < 10 {
                pairs[value + more] = [first, pairs[value + more - 1][1] + 1];
                more += 1;
            }
            (value, first) = (value + 10, first + 1);
        }
        pairs
    };
    u64::from(u16::from_le_bytes(PAIRS[value as usize]))
}

/// A line of any number.
#[inline(never)]
fn long(lines: &mut [u8], at: usize, kind: u8, value: i64) -> usize {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(value).as_bytes();
    let end = at + 1 + digits.len();
    lines[at] = kind;
    lines[at + 1..end].copy_from_slice(digits);
    lines[end..end + 2].copy_from_slice(b"\r\n");
    end + 2
}

/// `value`, below 10^8, without leading zeros: its text, the first digit in the lowest byte, and the number of
/// digits.
#[inline]
fn text(value: u64) -> (u64, usize) {
    let digits = digits(value);
    // The last digit stays, be it a zero.
    let zeros = (digits | 1 << 56).trailing_zeros() / 8;
    ((digits | ZEROS) >> (8 * zeros), 8 - zeros as usize)
}

/// The eight digits of `value`, below 10^8, one a byte, the highest in the lowest byte.
#[inline]
fn digits(value: u64) -> u64 {
    // x / 10^4, then in each half x / 100, then in each quarter x / 10, by multiplication: exact
    // for numbers of this size.
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | (fours - hundreds * 100) << 16;
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (twos - tens * 10) << 8
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

#[cfg(test)]
mod digits_tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: i64) -> String {
        let mut lines = [b'x'; LINE_CAPACITY];
        let end = line(&mut lines, 0, b':', value);
        assert!(end <= MAX_LINE);
        let line = str::from_utf8(&lines[..end]).unwrap();
        line.strip_prefix(':').and_then(|it| it.strip_suffix("\r\n")).unwrap().to_owned()
    }

    #[test]
    fn line_numbers_at_the_edges_of_each_length_read_back() {
        for length in 0..19 {
            let edge = 10_i64.pow(length);
            for value in [edge - 1, edge, edge + 1, -edge, edge * 9 / 2] {
                assert_eq!(text(value), value.to_string());
            }
        }
        for value in [i64::MIN, i64::MIN + 1, i64::MAX, i64::from(u32::MAX)] {
            assert_eq!(text(value), value.to_string());
        }
    }

    #[test]
    fn line_every_group_of_four_digits_reads_back() {
        for value in 0..10_000 {
            for value in [value, value * 10_000, value * 10_000 + 9_999, 10_000_000 + value] {
                assert_eq!(text(value), value.to_string());
            }
        }
    }

    proptest! {
        #[test]
        fn line_any_number_reads_back(value: i64, shift in 0..64_u32) {
            prop_assert_eq!(text(value >> shift), (value >> shift).to_string());
        }
    }
}
