//! What was decided, as CSV.

use std::io::{self, Write};

use sluicegate_core::{Decision, Timestamp};

use crate::{bytes, number};

/// The header of the rows.
pub const HEADER: &str =
    "t_us,key,cost,allowed,limit,remaining,retry_after_us,reset_after_us,delay_us\n";

/// Bytes collected before they are written.
const CHUNK: usize = 64 * 1024;
/// Room for a row but for its key: eight numbers, eight commas, two quotes and a line end.
const MAX_NUMBERS: usize = 8 * number::ROOM + 11;

/// Writes one row an event, behind [`HEADER`]. `allowed` is 1 or 0; `retry_after_us` is 0 when
/// allowed and -1 for never. Keys are put in quotes where RFC 4180 needs it.
///
/// Nothing is sure to be written before [`finish`](Self::finish).
#[derive(Debug)]
pub struct Rows<W> {
    sink: W,
    /// Its first `length` bytes are to be written; the rest is room.
    buffer: Vec<u8>,
    length: usize,
    /// The last time but for its last eight digits, and the last limit: mostly also the next ones.
    high: Written,
    limit: Written,
}

impl<W: Write> Rows<W> {
    /// Begins with the header.
    pub fn new(sink: W) -> Self {
        let mut buffer = vec![0; CHUNK + MAX_NUMBERS];
        buffer[..HEADER.len()].copy_from_slice(HEADER.as_bytes());
        Self { sink, buffer, length: HEADER.len(), high: Written::zero(), limit: Written::zero() }
    }

    /// Writes one row.
    ///
    /// # Errors
    /// That of the sink.
    #[inline]
    pub fn write(
        &mut self,
        time: Timestamp,
        key: &[u8],
        cost: u32,
        decision: &Decision,
    ) -> io::Result<()> {
        self.make_room(2 * key.len() + MAX_NUMBERS)?;
        let mut row = Row { out: &mut self.buffer[self.length..], at: 0 };
        row.time(time.as_micros(), &mut self.high);
        row.key(key);
        let [allowed, limit, remaining, retry, reset, delay, _] = decision.to_integers();
        row.byte(b',');
        row.number(cost.into());
        row.bytes(if allowed == 1 { b",1," } else { b",0," });
        row.again(unsigned(limit), &mut self.limit);
        row.byte(b',');
        row.number(unsigned(remaining));
        if retry == -1 {
            row.bytes(b",-1,");
        } else {
            row.byte(b',');
            row.number(unsigned(retry));
            row.byte(b',');
        }
        row.number(unsigned(reset));
        row.byte(b',');
        row.number(unsigned(delay));
        row.byte(b'\n');
        self.length += row.at;
        Ok(())
    }

    /// Writes what is left and gives the sink back.
    ///
    /// # Errors
    /// That of the sink.
    pub fn finish(mut self) -> io::Result<W> {
        self.sink.write_all(&self.buffer[..self.length])?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    #[inline]
    fn make_room(&mut self, needed: usize) -> io::Result<()> {
        if self.buffer.len() - self.length < needed {
            self.sink.write_all(&self.buffer[..self.length])?;
            self.length = 0;
            if self.buffer.len() < needed {
                self.buffer.resize(needed, 0);
            }
        }
        Ok(())
    }
}

/// What a decision tells but for `never`, which is not negative.
#[inline]
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A number with its digits, for the next time that it is written.
#[derive(Debug)]
struct Written {
    value: u64,
    digits: [u8; number::ROOM],
    length: usize,
}

impl Written {
    const fn zero() -> Self {
        Self { value: 0, digits: [b'0'; number::ROOM], length: 1 }
    }
}

/// A row that is being written; there is room for all of it.
struct Row<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Row<'_> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.out[self.at] = byte;
        self.at += 1;
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    #[inline]
    fn number(&mut self, value: u64) {
        if value < 10 {
            return self.byte(b'0' + value.to_le_bytes()[0]);
        }
        self.at += number::write(value, &mut self.out[self.at..]);
    }

    /// A number that is likely to be the one before.
    #[inline]
    fn again(&mut self, value: u64, last: &mut Written) {
        if value != last.value {
            last.value = value;
            last.length = number::write(value, &mut last.digits);
        }
        self.out[self.at..self.at + number::ROOM].copy_from_slice(&last.digits);
        self.at += last.length;
    }

    #[inline]
    fn time(&mut self, micros: u64, high: &mut Written) {
        let (upper, lower) = (micros / 100_000_000, micros % 100_000_000);
        if upper == 0 {
            return self.number(micros);
        }
        self.again(upper, high);
        self.bytes(&number::eight_digits(lower));
    }

    #[inline]
    fn key(&mut self, key: &[u8]) {
        self.byte(b',');
        // All bytes that matter are less than `-`.
        let plain = !bytes::any_below(b'-', key)
            || !key.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'));
        if plain {
            return self.bytes(key);
        }
        self.byte(b'"');
        for byte in key {
            if *byte == b'"' {
                self.byte(b'"');
            }
            self.byte(*byte);
        }
        self.byte(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluicegate_core::{Operation, Policy, apply};

    proptest! {
        #[test]
        fn any_key_reads_back(key in proptest::collection::vec(
            prop_oneof![Just(b','), Just(b'"'), Just(b'\r'), Just(b'\n'), any::<u8>()], 0..20,
        )) {
            let policy: Policy = "gcra:1/1s".parse().unwrap();
            let now = Timestamp::from_micros(5).unwrap();
            let decision = apply(&policy, &mut None, now, Operation::Take(9)).unwrap();
            let mut rows = Rows::new(Vec::new());
            rows.write(now, &key, 9, &decision).unwrap();
            let rows = rows.finish().unwrap();
            let mut reader = csv::Reader::from_reader(&rows[..]);
            let record = reader.byte_records().next().unwrap().unwrap();
            let expected: Vec<&[u8]> =
                vec![b"5", &key, b"9", b"0", b"1", b"1", b"-1", b"0", b"0"];
            prop_assert_eq!(record.iter().collect::<Vec<_>>(), expected);
        }
    }
}
