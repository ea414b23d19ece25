//! Decisions as CSV.
//!
//! Digits are written eight at a time: with `itoa`, `simulate --format csv` takes a third more instructions.

use std::io::{self, Write};

use sluicegate_core::{Decision, Timestamp};

/// The header of the rows.
pub const HEADER: &str =
    "t_us,key,cost,allowed,limit,remaining,retry_after_us,reset_after_us,delay_us\n";

/// Bytes collected before they are written.
const CHUNK: usize = 64 * 1024;
/// Upper bound on the length of a row without its key: eight numbers, each with a separator, and two quotes.
const MAX_NUMBERS: usize = 8 * (20 + 1) + 2 + 8;

/// Writes one row per event, after [`HEADER`]. `cost` is empty where the event has none; `allowed` is 1 or 0; `retry_after_us` is 0 when
/// allowed and -1 for never. Keys are quoted where RFC 4180 requires it.
///
/// Rows may stay in memory until [`finish`](Self::finish).
#[derive(Debug)]
pub struct Rows<W> {
    sink: W,
    /// The first `length` bytes are still to be written; the rest is space for the next row.
    buffer: Vec<u8>,
    length: usize,
}

impl<W: Write> Rows<W> {
    /// Begins with the header.
    pub fn new(sink: W) -> Self {
        let mut rows = Self { sink, buffer: vec![0; CHUNK], length: 0 };
        rows.push(HEADER.as_bytes());
        rows
    }

    /// Writes one row.
    ///
    /// # Errors
    /// That of the sink.
    pub fn write(
        &mut self,
        time: Timestamp,
        key: &[u8],
        cost: Option<u32>,
        decision: &Decision,
    ) -> io::Result<()> {
        self.reserve(2 * key.len() + MAX_NUMBERS)?;
        self.number(time.as_micros(), b',');
        self.key(key);
        let [allowed, limit, remaining, retry, reset, delay, _] = decision.to_integers();
        self.push(b",");
        match cost {
            Some(cost) => self.number(cost.into(), b','),
            None => self.push(b","),
        }
        self.number(allowed.unsigned_abs(), b',');
        self.number(limit.unsigned_abs(), b',');
        self.number(remaining.unsigned_abs(), b',');
        if retry < 0 {
            self.push(b"-");
        }
        self.number(retry.unsigned_abs(), b',');
        self.number(reset.unsigned_abs(), b',');
        self.number(delay.unsigned_abs(), b'\n');
        Ok(())
    }

    /// Writes the rest and returns the sink.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> io::Result<W> {
        self.sink.write_all(&self.buffer[..self.length])?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn reserve(&mut self, needed: usize) -> io::Result<()> {
        if self.buffer.len() - self.length < needed {
            self.sink.write_all(&self.buffer[..self.length])?;
            self.length = 0;
            self.buffer.resize(self.buffer.len().max(needed), 0);
        }
        Ok(())
    }

    fn key(&mut self, key: &[u8]) {
        // All bytes that need quotes are less than `-`.
        let plain = key.iter().all(|byte| *byte >= b'-')
            || !key.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'));
        if plain {
            return self.push(key);
        }
        self.push(b"\"");
        for byte in key {
            self.push(if *byte == b'"' { b"\"\"" } else { std::slice::from_ref(byte) });
        }
        self.push(b"\"");
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn number(&mut self, value: u64, separator: u8) {
        if value < 10 {
            return self.push(&[b'0' + value.to_le_bytes()[0], separator]);
        }
        self.digits(value);
        self.push(&[separator]);
    }

    fn digits(&mut self, value: u64) {
        if value >= EIGHT {
            self.digits(value / EIGHT);
            return self.push(&(eight_digits(value % EIGHT) + ZEROS).to_le_bytes());
        }
        let digits = eight_digits(value);
        let zeros = digits.trailing_zeros() / 8;
        self.push(&((digits >> (8 * zeros)) + ZEROS).to_le_bytes());
        self.length -= zeros as usize;
    }
}

const EIGHT: u64 = 100_000_000;
/// Eight times `0`.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The digits of a value less than 10^8 with zeros in front, one a byte, the first in the lowest: halves are parted
/// into fours, fours into pairs, pairs into digits, each in all lanes at once. The quotients are products with a
/// rounded-up inverse, exact for numbers of this size.
const fn eight_digits(value: u64) -> u64 {
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (fours - 100 * hundreds) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (pairs - 10 * tens) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluicegate_core::{Operation, Policy, apply};

    #[test]
    fn eight_digits_every_group_of_four_is_exact() {
        for four in 0..10_000 {
            let value = four * 10_000 + (9_999 - four);
            let digits = (eight_digits(value) + ZEROS).to_le_bytes();
            assert_eq!(&digits[..], format!("{value:08}").as_bytes());
        }
    }

    proptest! {
        #[test]
        fn rows_any_number_reads_back(value: u64, shift in 0..64_u32) {
            let mut rows = Rows::new(Vec::new());
            rows.number(value >> shift, b'\n');
            let text = String::from_utf8(rows.finish().unwrap()).unwrap();
            prop_assert_eq!(text, format!("{HEADER}{}\n", value >> shift));
        }

        #[test]
        fn rows_any_key_reads_back(key in proptest::collection::vec(
            prop_oneof![Just(b','), Just(b'"'), Just(b'\r'), Just(b'\n'), any::<u8>()], 0..20,
        )) {
            let policy: Policy = "gcra:1/1s".parse().unwrap();
            let now = Timestamp::from_micros(5).unwrap();
            let decision = apply(&policy, &mut None, now, Operation::Take(9)).unwrap();
            let mut rows = Rows::new(Vec::new());
            rows.write(now, &key, Some(9), &decision).unwrap();
            let rows = rows.finish().unwrap();
            let mut reader = csv::Reader::from_reader(&rows[..]);
            let record = reader.byte_records().next().unwrap().unwrap();
            let expected: Vec<&[u8]> =
                vec![b"5", &key, b"9", b"0", b"1", b"1", b"-1", b"0", b"0"];
            prop_assert_eq!(record.iter().collect::<Vec<_>>(), expected);
        }
    }
}
