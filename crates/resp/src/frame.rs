//! Replies as a client reads them, and commands as it writes them.
//!
//! All types of RESP2 and RESP3 in the specification at redis.io; of the drafts before it, not the
//! streamed types, which no server sends. Attributes are read and dropped.
//!
//! Invariants:
//! - the bytes in the buffer bound what is allocated, whatever lengths they declare;
//! - nesting is bounded, and with it the stack.

use memchr::memchr2;

use crate::number::number;
use crate::{ProtocolError, Version, Writer};

/// How deep aggregates may nest: an array of integers is one deep.
pub const MAX_DEPTH: usize = 32;

/// Longest bulk a reply may hold: what Redis allows by default.
const MAX_BULK: usize = 512 * 1024 * 1024;
/// Maximum number of elements of an aggregate: the limit of Redis.
const MAX_ELEMENTS: usize = 0x7fff_ffff;
/// The shortest element is `_\r\n`.
const MIN_ELEMENT: usize = 3;
/// Elements reserved at once. More grow as they arrive: nested headers could each claim the rest
/// of the buffer.
const MAX_RESERVED: usize = 64;

/// One reply, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A simple string, such as `OK`.
    Simple(Vec<u8>),
    /// An error, simple or bulk, from its code on: `ERR …`.
    Error(Vec<u8>),
    /// A whole number.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// No value: `_`, or RESP2's null bulk and null array.
    Null,
    /// An array.
    Array(Vec<Self>),
    /// A map, in the order it came, duplicates and all.
    Map(Vec<(Self, Self)>),
    /// A set, in the order it came, duplicates and all.
    Set(Vec<Self>),
    /// A message that answers no request.
    Push(Vec<Self>),
    /// True or false.
    Boolean(bool),
    /// A floating point number.
    Double(f64),
    /// A whole number of any size, in decimal.
    BigNumber(String),
    /// Text meant for people, and its format: `txt`, `mkd`.
    Verbatim([u8; 3], Vec<u8>),
}

/// Reads one reply from the front of `buffer`: the value and the number of bytes, `None` if bytes are missing.
///
/// Each call starts from the front; a client bounds its replies by bounding its buffer.
///
/// # Errors
/// Any error is final: the bytes after it cannot be interpreted.
pub fn decode(buffer: &[u8]) -> Result<Option<(Value, usize)>, ProtocolError> {
    let mut reader = Reader { bytes: buffer, position: 0 };
    Ok(reader.value(0)?.map(|value| (value, reader.position)))
}

/// Appends a command, its name the first argument.
pub fn encode_command(arguments: &[&[u8]], out: &mut Vec<u8>) {
    let mut writer = Writer::new(out, Version::Resp2);
    writer.array(arguments.len());
    for argument in arguments {
        writer.bulk(argument);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

/// `Ok(None)`: the bytes end too soon.
type Read<T> = Result<Option<T>, ProtocolError>;

/// The value of a [`Read`], or an early return.
macro_rules! ready {
    ($read:expr) => {
        match $read? {
            Some(value) => value,
            None => return Ok(None),
        }
    };
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Read<Value> {
        loop {
            let Some(&kind) = self.bytes.get(self.position) else { return Ok(None) };
            self.position += 1;
            let malformed = ProtocolError::MalformedReply(kind);
            let value = match kind {
                b'+' => Value::Simple(ready!(self.line(kind)).to_vec()),
                b'-' => Value::Error(ready!(self.line(kind)).to_vec()),
                b':' => Value::Integer(parse(ready!(self.line(kind))).ok_or(malformed)?),
                b',' => Value::Double(parse(ready!(self.line(kind))).ok_or(malformed)?),
                b'(' => Value::BigNumber(big_number(ready!(self.line(kind))).ok_or(malformed)?),
                b'#' => match ready!(self.line(kind)) {
                    b"t" => Value::Boolean(true),
                    b"f" => Value::Boolean(false),
                    _ => return Err(malformed),
                },
                b'_' => match ready!(self.line(kind)) {
                    b"" => Value::Null,
                    _ => return Err(malformed),
                },
                b'$' => {
                    ready!(self.bulk(true)).map_or(Value::Null, |text| Value::Bulk(text.to_vec()))
                }
                b'!' => Value::Error(ready!(self.bulk(false)).unwrap_or_default().to_vec()),
                b'=' => match ready!(self.bulk(false)).unwrap_or_default() {
                    &[a, b, c, b':', ref text @ ..] => Value::Verbatim([a, b, c], text.to_vec()),
                    _ => return Err(malformed),
                },
                b'*' => match ready!(self.count(true, 1)) {
                    Some(count) => Value::Array(ready!(self.elements(count, depth))),
                    None => Value::Null,
                },
                b'~' => {
                    let count = ready!(self.count(false, 1)).unwrap_or_default();
                    Value::Set(ready!(self.elements(count, depth)))
                }
                b'>' => {
                    let count = ready!(self.count(false, 1)).unwrap_or_default();
                    Value::Push(ready!(self.elements(count, depth)))
                }
                b'%' => {
                    let count = ready!(self.count(false, 2)).unwrap_or_default();
                    Value::Map(ready!(self.pairs(count, depth)))
                }
                b'|' => {
                    // An attribute only annotates the value behind it, which is the result.
                    let count = ready!(self.count(false, 2)).unwrap_or_default();
                    ready!(self.pairs(count, depth));
                    continue;
                }
                _ => return Err(ProtocolError::UnknownType(kind)),
            };
            return Ok(Some(value));
        }
    }

    fn elements(&mut self, count: usize, depth: usize) -> Read<Vec<Value>> {
        let depth = deeper(depth)?;
        let mut elements = Vec::with_capacity(count.min(MAX_RESERVED));
        for _ in 0..count {
            elements.push(ready!(self.value(depth)));
        }
        Ok(Some(elements))
    }

    fn pairs(&mut self, count: usize, depth: usize) -> Read<Vec<(Value, Value)>> {
        let depth = deeper(depth)?;
        let mut pairs = Vec::with_capacity(count.min(MAX_RESERVED));
        for _ in 0..count {
            pairs.push((ready!(self.value(depth)), ready!(self.value(depth))));
        }
        Ok(Some(pairs))
    }

    /// The number of elements that follow, each of `width` values; the inner `None` is the null of RESP2.
    ///
    /// A count that the received bytes cannot contain ends the reading here, before any of its elements is built only
    /// to be dropped.
    fn count(&mut self, nullable: bool, width: usize) -> Read<Option<usize>> {
        let count = ready!(self.length(
            nullable,
            MAX_ELEMENTS,
            ProtocolError::InvalidMultibulkLength,
            ProtocolError::TooBigMultibulkCount,
        ));
        let possible = (self.bytes.len() - self.position) / (MIN_ELEMENT * width);
        Ok((count.unwrap_or_default() <= possible).then_some(count))
    }

    /// The text of a bulk; the inner `None` is the null of RESP2.
    fn bulk(&mut self, nullable: bool) -> Read<Option<&'a [u8]>> {
        let length = ready!(self.length(
            nullable,
            MAX_BULK,
            ProtocolError::InvalidBulkLength,
            ProtocolError::TooBigBulkCount,
        ));
        let Some(length) = length else { return Ok(Some(None)) };
        let Some(text) = self.bytes[self.position..].get(..length + 2) else { return Ok(None) };
        let Some(text) = text.strip_suffix(b"\r\n") else {
            return Err(ProtocolError::UnterminatedBulk);
        };
        self.position += length + 2;
        Ok(Some(Some(text)))
    }

    /// A declared length up to `most`; the inner `None` is -1, where that is allowed.
    fn length(
        &mut self,
        nullable: bool,
        most: usize,
        invalid: ProtocolError,
        endless: ProtocolError,
    ) -> Read<Option<usize>> {
        let (length, taken) = ready!(number(&self.bytes[self.position..], invalid, endless));
        self.position += taken;
        if nullable && length == -1 {
            return Ok(Some(None));
        }
        let length = usize::try_from(length).ok().filter(|&length| length <= most);
        length.map(|length| Some(Some(length))).ok_or(invalid)
    }

    /// The text up to `\r\n`, in which neither byte may be alone.
    fn line(&mut self, kind: u8) -> Read<&'a [u8]> {
        let rest = &self.bytes[self.position..];
        let Some(end) = memchr2(b'\r', b'\n', rest) else { return Ok(None) };
        match rest[end..] {
            [b'\r', b'\n', ..] => {
                self.position += end + 2;
                Ok(Some(&rest[..end]))
            }
            [b'\r'] => Ok(None),
            _ => Err(ProtocolError::MalformedReply(kind)),
        }
    }
}

fn deeper(depth: usize) -> Result<usize, ProtocolError> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(ProtocolError::TooDeep) }
}

/// Text as a number, in any of the spellings that servers use.
fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn big_number(text: &[u8]) -> Option<String> {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    let valid = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    valid.then(|| text.iter().copied().map(char::from).collect())
}

#[cfg(test)]
mod tests;
