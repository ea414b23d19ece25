//! Commands as a server reads them: arrays of bulk strings, and inline lines.
//!
//! The grammar is the RESP specification's, the limits are those of Redis's `networking.c`. Two things are stricter:
//! the bytes after a bulk must be `\r\n`, and a header that cannot be a number is rejected after 32 bytes.
//!
//! Invariants:
//! - arguments are slices of the caller's buffer: reading a command copies and allocates nothing;
//! - a declared count or length is checked as soon as its header is read, and reserves nothing;
//! - each byte is read a bounded number of times, however finely the network cuts: reading resumes in the middle of a
//!   long command.

use std::mem;
use std::ops::Range;

use memchr::memchr;
use smallvec::SmallVec;

use crate::ProtocolError;
use crate::number::number;

/// The arguments of one command, its name first.
pub type Arguments<'a> = SmallVec<[&'a [u8]; 8]>;

/// Limits of one command. A greater declared size is rejected unread.
///
/// The caller bounds the size of a whole command, by the size of its read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of arguments, including the name of the command.
    pub max_arguments: usize,
    /// Longest argument, in bytes.
    pub max_bulk: usize,
    /// Longest inline command, in bytes before its `\n`.
    pub max_inline: usize,
    /// Whether the client has authenticated. It changes only the wording of an error.
    pub authenticated: bool,
}

impl Limits {
    /// For a client that has yet to authenticate: enough for `HELLO 3 AUTH … SETNAME …`.
    pub const UNAUTHENTICATED: Self =
        Self { max_arguments: 10, max_bulk: 16_384, max_inline: 16_384, authenticated: false };
}

impl Default for Limits {
    /// 1024 arguments of 64 KiB: Redis's 512 MiB would be absurd for a rate limiter.
    fn default() -> Self {
        Self { max_arguments: 1024, max_bulk: 65_536, max_inline: 65_536, authenticated: true }
    }
}

/// Arguments of ordinary commands, whose memory a parser keeps.
const KEPT_SPANS: usize = 64;

/// Reads the commands of one connection.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    limits: Limits,
    /// Bytes of the unfinished command that need not be read again.
    position: usize,
    /// Arguments of the unfinished command that are still to come.
    missing: usize,
    /// Arguments found so far, as offsets: the caller may move its bytes between two reads.
    spans: Vec<Range<usize>>,
}

impl Parser {
    /// A parser at the start of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Replaces the limits, as when the client authenticates. They hold from the next byte read.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Whether the next byte begins a command: nothing of one has been read that is unfinished.
    #[must_use]
    pub fn is_at_start(&self) -> bool {
        self.position == 0
    }

    /// Frees the memory that a command with many arguments took up, except the memory of an unfinished one. Returns
    /// the bytes that remain.
    #[inline]
    pub fn shrink(&mut self) -> usize {
        if self.spans.capacity() > KEPT_SPANS {
            self.spans.shrink_to_fit();
        }
        self.spans.capacity() * size_of::<Range<usize>>()
    }

    /// Takes one command off the front of `unread`.
    ///
    /// `true`: `arguments` are those of the command. If there are none (an empty line, `*0`, `*-1`), ignore it.
    /// `false`: the command is unfinished and `unread` as it was; call again with the same bytes and more behind
    /// them. One read contains many commands, so call until `false`; the slices live as long as the buffer, not just
    /// until the next call.
    ///
    /// The buffer is mutable because the escapes of an inline command are undone in place.
    ///
    /// # Errors
    /// Any error is final: answer it and close the connection.
    #[inline]
    pub fn parse<'a>(
        &mut self,
        unread: &mut &'a mut [u8],
        arguments: &mut Arguments<'a>,
    ) -> Result<bool, ProtocolError> {
        arguments.clear();
        let (inline, end) = match unread.first() {
            None => return Ok(false),
            Some(b'*') => (false, self.multibulk(unread)?),
            Some(_) => (true, self.line(unread)?),
        };
        let Some(end) = end else { return Ok(false) };

        let (command, rest) = mem::take(unread).split_at_mut(end);
        *unread = rest;
        if inline {
            split_words(command, self.limits.max_arguments, &mut self.spans)?;
        }
        let command: &'a [u8] = command;
        arguments.extend(self.spans.drain(..).map(|span| &command[span]));
        self.position = 0;
        Ok(true)
    }

    /// Fills `spans` from an array of bulks. Where it ends, or `None` if that is yet to come.
    fn multibulk(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.position == 0 {
            let malformed = ProtocolError::InvalidMultibulkLength;
            let endless = ProtocolError::TooBigMultibulkCount;
            let Some((count, taken)) = number(&bytes[1..], malformed, endless)? else {
                return Ok(None);
            };
            let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
            if count > self.limits.max_arguments {
                return Err(if self.limits.authenticated {
                    ProtocolError::InvalidMultibulkLength
                } else {
                    ProtocolError::UnauthenticatedMultibulkLength
                });
            }
            self.position = 1 + taken;
            self.missing = count;
            self.spans.clear();
        }
        while self.missing > 0 {
            let rest = bytes.get(self.position..).unwrap_or_default();
            let Some(span) = self.bulk(rest)? else { return Ok(None) };
            self.spans.push(self.position + span.start..self.position + span.end);
            self.position += span.end + 2;
            self.missing -= 1;
        }
        Ok(Some(self.position))
    }

    /// Where the text of the bulk at the front of `bytes` is.
    #[inline]
    fn bulk(&self, bytes: &[u8]) -> Result<Option<Range<usize>>, ProtocolError> {
        match bytes.first() {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&byte) => return Err(ProtocolError::ExpectedBulk(byte)),
        }
        let malformed = ProtocolError::InvalidBulkLength;
        let endless = ProtocolError::TooBigBulkCount;
        let Some((length, taken)) = number(&bytes[1..], malformed, endless)? else {
            return Ok(None);
        };
        if length < 0 {
            return Err(malformed);
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > self.limits.max_bulk {
            return Err(if self.limits.authenticated {
                ProtocolError::InvalidBulkLength
            } else {
                ProtocolError::UnauthenticatedBulkLength
            });
        }
        let text = &bytes[1 + taken..];
        if text.len() < length.saturating_add(2) {
            return Ok(None);
        }
        if !text[length..].starts_with(b"\r\n") {
            return Err(ProtocolError::UnterminatedBulk);
        }
        Ok(Some(1 + taken..1 + taken + length))
    }

    /// Where the line at the front ends, its `\n` included.
    fn line(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let window = &bytes[..bytes.len().min(self.limits.max_inline.saturating_add(1))];
        match memchr(b'\n', window.get(self.position..).unwrap_or_default()) {
            Some(at) => Ok(Some(self.position + at + 1)),
            None if bytes.len() > self.limits.max_inline => Err(ProtocolError::TooBigInline),
            None => {
                self.position = window.len();
                Ok(None)
            }
        }
    }
}

/// Splits a line as Redis does: at whitespace, outside of quotes. A word only ever shrinks as its quotes and escapes
/// are undone, therefore it stays in place.
fn split_words(
    line: &mut [u8],
    max_arguments: usize,
    spans: &mut Vec<Range<usize>>,
) -> Result<(), ProtocolError> {
    spans.clear();
    let mut read = 0;
    loop {
        while line.get(read).is_some_and(u8::is_ascii_whitespace) {
            read += 1;
        }
        if read == line.len() {
            return Ok(());
        }
        if spans.len() == max_arguments {
            return Err(ProtocolError::TooBigInline);
        }
        let start = read;
        let mut write = read;
        let mut quote = None;
        while let Some(&byte) = line.get(read) {
            read += 1;
            let text = match (quote, byte) {
                (None, b'"' | b'\'') => {
                    quote = Some(byte);
                    continue;
                }
                (None, _) if byte.is_ascii_whitespace() => break,
                (Some(b'"'), b'\\') => {
                    let (text, taken) = unescape(&line[read..]);
                    read += taken;
                    text
                }
                (Some(b'\''), b'\\') if line.get(read) == Some(&b'\'') => {
                    read += 1;
                    b'\''
                }
                (Some(open), _) if open == byte => {
                    if line.get(read).is_some_and(|next| !next.is_ascii_whitespace()) {
                        return Err(ProtocolError::UnbalancedQuotes);
                    }
                    quote = None;
                    break;
                }
                _ => byte,
            };
            line[write] = text;
            write += 1;
        }
        if quote.is_some() {
            return Err(ProtocolError::UnbalancedQuotes);
        }
        spans.push(start..write);
    }
}

/// The byte for the escape after a backslash, and the length of the escape.
fn unescape(rest: &[u8]) -> (u8, usize) {
    match *rest {
        [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
            (hex(high) << 4 | hex(low), 3)
        }
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [b'b', ..] => (0x08, 1),
        [b'a', ..] => (0x07, 1),
        [other, ..] => (other, 1),
        [] => (b'\\', 0),
    }
}

/// The value of a hexadecimal digit.
fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit.to_ascii_lowercase() - b'a' + 10,
    }
}

#[cfg(test)]
mod tests;
