//! The line that nearly all lines are: sixteen digits, a key without quotes, one or two digits.
//!
//! It is read in one go, its end found on the way; whatever is out of the ordinary, faults among
//! it, is left to those who read any line.

use crate::{bytes, number};

/// Digits of a time from September 2001 to the year 2112.
const TIME: usize = 16;

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Everyday {
    /// In microseconds.
    pub(crate) time: u64,
    /// Where the key begins and where it ends.
    pub(crate) key: (usize, usize),
    pub(crate) cost: u32,
    /// Where the next line begins.
    pub(crate) next: usize,
}

/// Reads a line of `t_us,key,cost` off the front of `text`, if it is of the everyday kind.
#[inline(always)]
pub(crate) fn read(text: &[u8]) -> Option<Everyday> {
    let (first, rest) = text.split_first_chunk()?;
    let (second, rest) = rest.split_first_chunk()?;
    let time = number::parse_eight(*first)? * 100_000_000 + number::parse_eight(*second)?;
    let [b',', rest @ ..] = rest else { return None };
    let length = bytes::first_of(b',', b'\n', rest)?;
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
    let (cost, digits) = match &rest[length..] {
        [b',', one, b'\n', ..] => (digit(one)?, 1),
        [b',', ten, one, b'\n', ..] => (10 * digit(ten)? + digit(one)?, 2),
        _ => return None,
    };
    let key = (TIME + 1, TIME + 1 + length);
    Some(Everyday { time, key, cost, next: key.1 + digits + 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_lines_are_read_and_others_left() {
        let line = b"1700000000000001,user:1,42\n17";
        let found = Everyday { time: 1_700_000_000_000_001, key: (17, 23), cost: 42, next: 27 };
        assert_eq!(read(line), Some(found));
        assert_eq!(read(b"1700000000000001,,7\n").map(|line| line.key), Some((17, 17)));
        for other in [
            "1700000000000001,user:1,42",
            "1700000000000001,user:1,428\n",
            "1700000000000001,user:1,4\r\n",
            "1700000000000001,user:1,x\n",
            "1700000000000001,user:1,\n",
            "1700000000000001,user\n:1,1\n",
            "1700000000000001,user:1,1,1\n",
            "170000000000000,user:1,1\n",
            "17000000000000011,user:1,1\n",
            "170000000000000x,user:1,1\n",
            "",
        ] {
            assert_eq!(read(other.as_bytes()), None, "{other}");
        }
    }
}
