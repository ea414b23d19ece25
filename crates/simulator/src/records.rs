//! Records of CSV (RFC 4180), from a source of bytes: the shape of a trace, not its meaning.
//!
//! A record without quotes, as nearly every one is, is a slice of the read buffer. Lines end in
//! LF or CRLF; empty lines are skipped; fields contain any bytes.
//!
//! Invariants: the records do not depend on how the source cuts them; the buffer has no more than one line of at most
//! [`MAX_LINE`] bytes.

use std::io::{self, Read};

use memchr::{memchr, memchr_iter, memchr2};

use crate::{
    error::{Fault, TraceError},
    limits::{BYTE_ORDER_MARK, MAX_LINE},
    simple_line::SimpleLine,
};

/// Maximum number of fields that can be read: one more than there are columns.
pub(crate) const MAX_FIELDS: usize = 8;

/// Bytes read from the source at once.
const CHUNK: usize = 64 * 1024;

/// The last record: where its fields are.
#[derive(Debug, Default)]
struct Record {
    /// The line that it begins on.
    line: u64,
    /// Whether it has quotes: its fields are then not in the read buffer, but in one of their own.
    quoted: bool,
    /// Where the first field begins in its buffer.
    start: usize,
    /// Where each field ends; the next one begins one byte later.
    ends: [usize; MAX_FIELDS],
    /// The number of fields, which may be more than can be read.
    count: usize,
}

/// Reads records one after the other.
#[derive(Debug)]
pub(crate) struct Records<R> {
    source: R,
    buffer: Vec<u8>,
    /// Start of the next record in the buffer, and the end of the bytes read.
    start: usize,
    end: usize,
    /// Whether the source has no more.
    ended: bool,
    /// The line that the next record begins on.
    line: u64,
    record: Record,
    /// The fields of the last record with quotes, each followed by one byte.
    unquoted: Vec<u8>,
}

impl<R: Read> Records<R> {
    pub(crate) fn new(source: R) -> Self {
        let (buffer, record, unquoted) = (vec![0; CHUNK], Record::default(), Vec::new());
        Self { source, buffer, start: 0, end: 0, ended: false, line: 1, record, unquoted }
    }

    /// Skips a byte order mark.
    pub(crate) fn skip_byte_order_mark(&mut self) -> Result<(), TraceError> {
        while self.end < BYTE_ORDER_MARK.len() && self.fill()? {}
        if self.buffer[..self.end].starts_with(BYTE_ORDER_MARK) {
            self.start = BYTE_ORDER_MARK.len();
        }
        Ok(())
    }

    /// Reads the next record; false at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, TraceError> {
        while !self.advance_in_place() {
            if self.ended && self.start == self.end {
                return Ok(false);
            }
            let (line, text) = (self.line, &self.buffer[self.start..self.end]);
            self.record = Record { line, quoted: true, ..Record::default() };
            let found = self.record.unquote(text, self.ended, &mut self.unquoted);
            let length = found.as_ref().map_or(text.len(), |(length, _)| *length);
            if length > MAX_LINE {
                return Err(self.stop(Fault::TooLong, line));
            }
            let Some((_, fault)) = found else {
                self.fill()?;
                continue;
            };
            let is_empty = matches!(&text[..length], b"" | b"\r");
            let breaks = memchr_iter(b'\n', &text[..length]).count();
            self.line += 1 + u64::try_from(breaks).expect("less than a line has bytes");
            self.start = (self.start + length + 1).min(self.end);
            match fault {
                None if is_empty => {}
                None => return Ok(true),
                Some(Fault::OpenQuote) => return Err(self.stop(Fault::OpenQuote, line)),
                Some(fault) => return Err(fault.at(line)),
            }
        }
        Ok(true)
    }

    /// Reads the next record if it has arrived completely and has no quotes: the buffer does not change, and
    /// the records before stay valid.
    pub(crate) fn advance_in_place(&mut self) -> bool {
        loop {
            let text = &self.buffer[self.start..self.end];
            let Some(length) = memchr2(b'\n', b'"', text) else { return false };
            if text[length] == b'"' || length > MAX_LINE {
                return false;
            }
            let (start, line) = (self.start, self.line);
            self.start += length + 1;
            self.line += 1;
            let text = without_return(&text[..length]);
            if !text.is_empty() {
                self.record = Record { line, quoted: false, start, ..self.record };
                self.record.split(text);
                return true;
            }
        }
    }

    /// The next line if it is a simple one and `wanted`, with where it begins and its number.
    pub(crate) fn simple_line(
        &mut self,
        wanted: impl Fn(&SimpleLine) -> bool,
    ) -> Option<(SimpleLine, usize, u64)> {
        let found = SimpleLine::read(&self.buffer[self.start..self.end])?;
        if found.next > MAX_LINE || !wanted(&found) {
            return None;
        }
        let (start, line) = (self.start, self.line);
        self.start += found.next;
        self.line += 1;
        Some((found, start, line))
    }

    /// The line that the record begins on, counted from 1.
    pub(crate) fn line(&self) -> u64 {
        self.record.line
    }

    /// Whether the fields of the record are apart from those of the records before.
    pub(crate) fn is_quoted(&self) -> bool {
        self.record.quoted
    }

    /// The number of fields of the record, which may be more than can be read.
    pub(crate) fn count(&self) -> usize {
        self.record.count
    }

    /// The field of that index, which must be less than `count` and `MAX_FIELDS`.
    pub(crate) fn field(&self, index: usize) -> &[u8] {
        let (start, end) = self.range(index);
        &self.bytes()[start..end]
    }

    /// Where in [`bytes`](Self::bytes) that field begins and ends.
    pub(crate) fn range(&self, index: usize) -> (usize, usize) {
        let Record { start, ends, .. } = &self.record;
        (if index == 0 { *start } else { ends[index - 1] + 1 }, ends[index])
    }

    /// The buffer of the fields of the record, and of those before it if all were read in place.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.record.quoted { &self.unquoted } else { &self.buffer }
    }

    /// Reads no further.
    fn stop(&mut self, fault: Fault, line: u64) -> TraceError {
        self.start = self.end;
        self.ended = true;
        fault.at(line)
    }

    /// Reads more; false at the end of the source.
    fn fill(&mut self) -> Result<bool, TraceError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            // Never above twice `MAX_LINE`: a longer line is an error before.
            self.buffer.resize(2 * self.end, 0);
        }
        let read = loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.end += read;
        self.ended = read == 0;
        Ok(!self.ended)
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl Record {
    /// Finds the fields of `text`, a record without quotes.
    fn split(&mut self, text: &[u8]) {
        self.count = 0;
        for comma in memchr_iter(b',', text) {
            self.add(self.start + comma);
        }
        self.add(self.start + text.len());
    }

    /// Copies the fields of the record at the front of `text` out of their quotes. Returns the length of the record
    /// without its LF, and the fault in it; `None` if its end is missing, unless the source has `ended`.
    #[cold]
    fn unquote(
        &mut self,
        text: &[u8],
        ended: bool,
        fields: &mut Vec<u8>,
    ) -> Option<(usize, Option<Fault>)> {
        fields.clear();
        let (mut at, mut fault) = (0, None);
        loop {
            let is_quoted = text.get(at) == Some(&b'"');
            // A quote inside is doubled.
            while text.get(at) == Some(&b'"') {
                at += 1;
                let Some(length) = memchr(b'"', &text[at..]) else {
                    return ended.then_some((text.len(), Some(Fault::OpenQuote)));
                };
                fields.extend_from_slice(&text[at..at + length]);
                at += length + 1;
                if text.get(at) == Some(&b'"') {
                    fields.push(b'"');
                }
            }
            let end = memchr2(b',', b'\n', &text[at..]).map(|length| at + length);
            let end = end.or_else(|| ended.then_some(text.len()))?;
            let is_last = text.get(end) != Some(&b',');
            let rest = if is_last { without_return(&text[at..end]) } else { &text[at..end] };
            if (is_quoted && !rest.is_empty()) || memchr(b'"', rest).is_some() {
                fault = fault.or(Some(Fault::StrayQuote { field: self.count }));
            }
            fields.extend_from_slice(rest);
            self.add(fields.len());
            if is_last {
                return Some((end, fault));
            }
            fields.push(b',');
            at = end + 1;
        }
    }

    fn add(&mut self, end: usize) {
        if let Some(field) = self.ends.get_mut(self.count) {
            *field = end;
        }
        self.count += 1;
    }
}
