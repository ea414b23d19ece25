//! Replies as a server writes them, in RESP2 or RESP3.
//!
//! One call per type of the specification; for a type that RESP2 lacks, its Redis equivalent.
//!
//! Invariants:
//! - text cannot break framing: in a simple string or an error, line breaks become spaces;
//! - an aggregate is a header only, and the caller writes as many elements as it announced.

use crate::number;

/// Maximum length of an error, in bytes. The rest is cut, because errors quote what clients send.
pub const MAX_ERROR: usize = 512;

/// Number of lines that are appended at once.
const GROUP: usize = 9;

/// The protocol of a connection: RESP2 until `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// The five types of Redis 1.2, which every client speaks.
    #[default]
    Resp2,
    /// With maps, sets, booleans, doubles, verbatim strings and pushes.
    Resp3,
}

/// Appends replies to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> Writer<'a> {
    /// A writer at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    /// A simple string, such as `OK`.
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.out.push(b'+');
        self.one_line(text.as_ref());
    }

    /// An error. Its first word is its code: `ERR`, `NOAUTH`. Cut at [`MAX_ERROR`] bytes.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.out.push(b'-');
        self.one_line(cut(text.as_ref(), MAX_ERROR));
    }

    /// A whole number.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A flat array of whole numbers: the reply of `CL.THROTTLE`.
    #[inline]
    pub fn integers<const N: usize>(&mut self, values: &[i64; N]) {
        // Put together on the stack and appended in one piece: a reply is mostly a few short numbers.
        let mut lines = [0; GROUP * number::MAX_LINE + number::LINE_CAPACITY];
        let mut at = number::line(&mut lines, 0, b'*', i64::try_from(N).expect("arrays are short"));
        for (count, &value) in (1..).zip(values) {
            if count % GROUP == 0 {
                self.out.extend_from_slice(&lines[..at]);
                at = 0;
            }
            at = number::line(&mut lines, at, b':', value);
        }
        self.out.extend_from_slice(&lines[..at]);
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        self.size(b'$', text.len());
        self.text(text);
    }

    /// No value.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The header of an array: `length` elements follow.
    #[inline]
    pub fn array(&mut self, length: usize) {
        self.size(b'*', length);
    }

    /// The header of a map: `length` pairs follow, each a key and a value. RESP2: a flat array.
    pub fn map(&mut self, length: usize) {
        match self.version {
            Version::Resp2 => self.array(length.saturating_mul(2)),
            Version::Resp3 => self.size(b'%', length),
        }
    }

    /// The header of a set: `length` elements follow. RESP2: an array.
    pub fn set(&mut self, length: usize) {
        let kind = if self.version == Version::Resp3 { b'~' } else { b'*' };
        self.size(kind, length);
    }

    /// Text meant for people, in a format such as `b"txt"` or `b"mkd"`. RESP2: a bulk.
    pub fn verbatim(&mut self, format: &[u8; 3], text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => {
                self.size(b'=', text.len() + 4);
                self.out.extend_from_slice(format);
                self.out.push(b':');
                self.text(text);
            }
        }
    }

    #[inline]
    fn size(&mut self, kind: u8, length: usize) {
        self.header(kind, i64::try_from(length).expect("no slice is longer than `isize::MAX`"));
    }

    #[inline]
    fn header(&mut self, kind: u8, value: i64) {
        let mut header = [0; number::LINE_CAPACITY];
        let end = number::line(&mut header, 0, kind, value);
        self.out.extend_from_slice(&header[..end]);
    }

    #[inline]
    fn text(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    fn one_line(&mut self, text: &[u8]) {
        let safe = |&byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.out.extend(text.iter().map(safe));
        self.out.extend_from_slice(b"\r\n");
    }
}

/// At most `most` bytes from the front, and no half of a UTF-8 character at the end.
fn cut(text: &[u8], most: usize) -> &[u8] {
    if text.len() <= most {
        return text;
    }
    let continues = |at: usize| text[at] & 0b1100_0000 == 0b1000_0000;
    let boundary = (most.saturating_sub(3)..=most).rev().find(|&at| !continues(at));
    &text[..boundary.unwrap_or(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `write` appends in each version.
    fn check(write: impl Fn(&mut Writer<'_>), resp2: &str, resp3: &str) {
        for (version, expected) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
            let mut out = b"before".to_vec();
            write(&mut Writer::new(&mut out, version));
            let expected = format!("before{expected}");
            assert_eq!(
                out.escape_ascii().to_string(),
                expected.as_bytes().escape_ascii().to_string()
            );
        }
    }

    /// The same in both versions.
    fn same(write: impl Fn(&mut Writer<'_>), expected: &str) {
        check(write, expected, expected);
    }

    #[test]
    fn writer_types_of_both_versions_are_equal() {
        same(|writer| writer.simple("OK"), "+OK\r\n");
        same(|writer| writer.error("ERR no"), "-ERR no\r\n");
        same(|writer| writer.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n");
        same(|writer| writer.bulk(""), "$0\r\n\r\n");
        same(|writer| writer.bulk([b'x'; 10]), "$10\r\nxxxxxxxxxx\r\n");
        same(|writer| writer.array(0), "*0\r\n");
        same(|writer| writer.array(128), "*128\r\n");
        for value in [0, 9, 10, -1, i64::MAX, i64::MIN] {
            same(|writer| writer.integer(value), &format!(":{value}\r\n"));
        }
        same(|writer| writer.integers(&[]), "*0\r\n");
        let many = format!("*20\r\n{}", ":-9223372036854775808\r\n".repeat(20));
        same(|writer| writer.integers(&[i64::MIN; 20]), &many);
        same(
            |writer| writer.integers(&[1, 16, 15, -1, 60]),
            "*5\r\n:1\r\n:16\r\n:15\r\n:-1\r\n:60\r\n",
        );
    }

    #[test]
    fn writer_types_of_resp3_have_a_form_in_resp2() {
        check(|writer| writer.null(), "$-1\r\n", "_\r\n");
        check(|writer| writer.map(7), "*14\r\n", "%7\r\n");
        check(|writer| writer.set(2), "*2\r\n", "~2\r\n");
        check(|writer| writer.verbatim(b"txt", "a b"), "$3\r\na b\r\n", "=7\r\ntxt:a b\r\n");
    }

    #[test]
    fn writer_line_breaks_in_text_become_spaces() {
        same(|writer| writer.simple("a\r\n+b\nc\r"), "+a  +b c \r\n");
        same(|writer| writer.error("ERR 'x\r\n$1\r\n'"), "-ERR 'x  $1  '\r\n");
    }

    #[test]
    fn writer_long_error_is_cut_between_characters() {
        for (length, kept) in
            [(MAX_ERROR - 1, MAX_ERROR - 1), (MAX_ERROR, MAX_ERROR), (MAX_ERROR + 1, MAX_ERROR)]
        {
            same(|writer| writer.error("x".repeat(length)), &format!("-{}\r\n", "x".repeat(kept)));
        }
        let text = format!("{}€€", "x".repeat(MAX_ERROR - 4));
        same(|writer| writer.error(&text), &format!("-{}€\r\n", "x".repeat(MAX_ERROR - 4)));
        let nonsense = [0x80; MAX_ERROR + 9];
        assert_eq!(cut(&nonsense, MAX_ERROR).len(), MAX_ERROR);
    }
}
