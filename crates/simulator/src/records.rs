//! Records of CSV (RFC 4180), from a source of bytes: the shape of a trace, not its meaning.
//!
//! A record without quotes, which is nearly every one, is a slice of the read buffer. Lines end in
//! LF or CRLF; empty lines are skipped; fields hold any bytes.
//!
//! Invariants: what is read does not depend on how the source cuts it; no more than one line of
//! at most [`MAX_LINE`] bytes is held.

use std::io::{self, Read};

use memchr::memchr;

use crate::{
    bytes,
    error::{Fault, TraceError},
    everyday::{self, Everyday},
    limits::MAX_LINE,
};

/// Fields that are told apart: one more than there are columns to know.
pub(crate) const MAX_FIELDS: usize = 6;

/// Bytes asked from the source at once.
const CHUNK: usize = 64 * 1024;

/// The last record, in the buffer that it points into.
#[derive(Debug, Default)]
struct Record {
    /// Where its text begins, and its length without the LF that ends it.
    start: usize,
    length: usize,
    line: u64,
    /// It has quotes: its fields are not in the buffer, but beside it.
    quoted: bool,
    /// Where each field ends, from the start on; the next one begins behind one more byte.
    ends: [usize; MAX_FIELDS],
    /// How many fields it has, which may be more than are told apart.
    count: usize,
}

/// Reads records one after the other.
#[derive(Debug)]
pub(crate) struct Records<R> {
    source: R,
    buffer: Vec<u8>,
    /// Where in the buffer the next record begins, and where what was read ends.
    start: usize,
    end: usize,
    /// Where the first quote from `start` on is; `end` if there is none.
    quote: usize,
    /// The source has no more.
    ended: bool,
    /// The line that the next record begins on.
    line: u64,
    record: Record,
    /// The fields of the last record that had quotes, with one byte from each to the next.
    unquoted: Vec<u8>,
}

impl<R: Read> Records<R> {
    pub(crate) fn new(source: R) -> Self {
        let buffer = vec![0; CHUNK];
        let (record, unquoted) = (Record::default(), Vec::new());
        Self { source, buffer, start: 0, end: 0, quote: 0, ended: false, line: 1, record, unquoted }
    }

    /// Skips the mark that some editors put at the beginning of a file.
    pub(crate) fn skip_byte_order_mark(&mut self) -> Result<(), TraceError> {
        while self.end < 3 && self.fill()? {}
        if self.buffer[..self.end].starts_with(b"\xef\xbb\xbf") {
            self.start = 3;
        }
        Ok(())
    }

    /// Goes on to the next record; false at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, TraceError> {
        while !self.advance_in_place() {
            if !self.find_slowly()? {
                return Ok(false);
            }
            let Record { start, length, quoted, .. } = self.record;
            let text = without_return(&self.buffer[start..start + length]);
            if text.is_empty() {
                continue;
            }
            if quoted {
                self.record.unquote(text, &mut self.unquoted)?;
            } else {
                self.record.split(text);
            }
            break;
        }
        Ok(true)
    }

    /// Goes on to the next record if it is all there and has no quotes: the buffer stays as it is,
    /// and with it the records before.
    #[inline(always)]
    pub(crate) fn advance_in_place(&mut self) -> bool {
        loop {
            let Some(length) = memchr(b'\n', &self.buffer[self.start..self.end]) else {
                return false;
            };
            let start = self.start;
            if start + length >= self.quote || length > MAX_LINE {
                return false;
            }
            let line = self.line;
            self.start += length + 1;
            self.line += 1;
            let text = without_return(&self.buffer[start..start + length]);
            if !text.is_empty() {
                self.record.start = start;
                self.record.line = line;
                self.record.quoted = false;
                self.record.split(text);
                return true;
            }
        }
    }

    /// The next line, if it is of the everyday kind ([`everyday`]) and all there. It is then
    /// behind; its number comes with it, and where it began.
    #[inline(always)]
    pub(crate) fn everyday_in_place(
        &mut self,
        wanted: impl Fn(&Everyday) -> bool,
    ) -> Option<(Everyday, usize, u64)> {
        let found = everyday::read(&self.buffer[self.start..self.end])?;
        let next = self.start + found.next;
        if next > self.quote || found.next > MAX_LINE || !wanted(&found) {
            return None;
        }
        let (start, line) = (self.start, self.line);
        self.start = next;
        self.line += 1;
        Some((found, start, line))
    }

    /// The line that the record begins on, counted from 1.
    #[inline]
    pub(crate) fn line(&self) -> u64 {
        self.record.line
    }

    /// Whether it had quotes.
    #[inline]
    pub(crate) fn is_quoted(&self) -> bool {
        self.record.quoted
    }

    /// How many fields the record has, which may be more than are told apart.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.record.count
    }

    /// The field of that index, which must be less than `count` and `MAX_FIELDS`.
    #[inline(always)]
    pub(crate) fn field(&self, index: usize) -> &[u8] {
        let (start, end) = self.place(index);
        &self.bytes()[start..end]
    }

    /// Where in [`bytes`](Self::bytes) that field begins and ends.
    #[inline(always)]
    pub(crate) fn place(&self, index: usize) -> (usize, usize) {
        let Record { start, quoted, ends, .. } = &self.record;
        let base = if *quoted { 0 } else { *start };
        let start = if index == 0 { 0 } else { ends[index - 1] + 1 };
        (base + start, base + ends[index])
    }

    /// What holds the fields of the record, and of those before it that were advanced from in
    /// place.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.record.quoted { &self.unquoted } else { &self.buffer }
    }

    /// A record that is not all there yet, or has quotes.
    #[cold]
    fn find_slowly(&mut self) -> Result<bool, TraceError> {
        let (mut scan, line) = (Scan::default(), self.line);
        loop {
            let end = scan.find_end(&self.buffer[self.start..self.end]);
            let length = end.unwrap_or(self.end - self.start);
            if length > MAX_LINE {
                return Err(self.stop(Fault::TooLong, line));
            }
            if end.is_none() && self.fill()? {
                continue;
            }
            if end.is_none() && length == 0 {
                return Ok(false);
            }
            if scan.place == Place::Quoted {
                return Err(self.stop(Fault::OpenQuote, line));
            }
            let start = self.start;
            let quoted = self.quote < start + length;
            self.record = Record { start, length, line, quoted, ..Record::default() };
            self.start = (start + length + 1).min(self.end);
            self.line += scan.lines + 1;
            self.find_quote(self.start);
            return Ok(true);
        }
    }

    /// Reads no further.
    fn stop(&mut self, fault: Fault, line: u64) -> TraceError {
        self.start = self.end;
        self.quote = self.end;
        self.ended = true;
        fault.at(line)
    }

    fn find_quote(&mut self, from: usize) {
        if self.quote < from || self.quote == self.end {
            let found = memchr(b'"', &self.buffer[from..self.end]);
            self.quote = found.map_or(self.end, |at| from + at);
        }
    }

    /// Reads more behind what is there; false at the end of the source.
    fn fill(&mut self) -> Result<bool, TraceError> {
        if self.ended {
            return Ok(false);
        }
        let no_quote = self.quote == self.end;
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.quote = self.quote.saturating_sub(self.start);
        self.start = 0;
        if self.end == self.buffer.len() {
            // Never above twice `MAX_LINE`: a longer line is refused before.
            self.buffer.resize(2 * self.end, 0);
        }
        let read = loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        let from = self.end;
        self.end += read;
        self.ended = read == 0;
        if no_quote {
            self.quote = self.end;
            self.find_quote(from);
        }
        Ok(read > 0)
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl Record {
    /// Finds the fields of a record without quotes: where its commas are is all there is to find.
    #[inline(always)]
    fn split(&mut self, text: &[u8]) {
        let mut count = 0;
        bytes::each(b',', text, |at| {
            if let Some(end) = self.ends.get_mut(count) {
                *end = at;
            }
            count += 1;
        });
        if let Some(end) = self.ends.get_mut(count) {
            *end = text.len();
        }
        self.count = count + 1;
    }

    /// Copies the fields of a record out of their quotes.
    fn unquote(&mut self, text: &[u8], fields: &mut Vec<u8>) -> Result<(), TraceError> {
        fields.clear();
        self.count = 0;
        let mut at = 0;
        loop {
            let field = self.count;
            if text.get(at) == Some(&b'"') {
                at += 1;
                while let Some(length) = memchr(b'"', &text[at..]) {
                    fields.extend_from_slice(&text[at..at + length]);
                    at += length + 1;
                    if text.get(at) != Some(&b'"') {
                        break;
                    }
                    fields.push(b'"');
                    at += 1;
                }
            } else {
                let length = memchr(b',', &text[at..]).unwrap_or(text.len() - at);
                if memchr(b'"', &text[at..at + length]).is_some() {
                    return Err(Fault::StrayQuote { field }.at(self.line));
                }
                fields.extend_from_slice(&text[at..at + length]);
                at += length;
            }
            if let Some(end) = self.ends.get_mut(field) {
                *end = fields.len();
            }
            self.count += 1;
            match text.get(at) {
                None => return Ok(()),
                Some(b',') => {
                    fields.push(b',');
                    at += 1;
                }
                Some(_) => return Err(Fault::StrayQuote { field }.at(self.line)),
            }
        }
    }
}

/// Where a record with quotes ends; goes on where it stopped when more bytes have come.
#[derive(Default)]
struct Scan {
    at: usize,
    place: Place,
    /// Line breaks inside quotes.
    lines: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    FieldStart,
    Unquoted,
    Quoted,
    /// Behind a quote that closes the field, unless another follows at once.
    Closed,
}

impl Scan {
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(byte) = bytes.get(self.at) {
            self.place = match (self.place, byte) {
                (Place::Quoted, b'"') => Place::Closed,
                (Place::Quoted, byte) => {
                    self.lines += u64::from(*byte == b'\n');
                    Place::Quoted
                }
                (_, b'\n') => return Some(self.at),
                (_, b',') => Place::FieldStart,
                (Place::FieldStart | Place::Closed, b'"') => Place::Quoted,
                _ => Place::Unquoted,
            };
            self.at += 1;
        }
        None
    }
}
