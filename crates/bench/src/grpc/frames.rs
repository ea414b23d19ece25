//! A minimal HTTP/2 client: calls are prepared bytes, and of the replies only frame headers are read.

use std::io;

/// The preface of a client, its settings, and a window of 2 GiB for the connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\x00\x00";
/// The acknowledgement of the server's settings.
const SETTINGS_ACK: &[u8] = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The path of a call, and the header block of a further call: indexes into the table of the connection, which the
/// first call has filled.
const PATH: &[u8] = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const INDEXED_HEADERS: [u8; 6] = [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];

/// The first bytes of a connection.
pub(super) fn preface() -> Vec<u8> {
    [PREFACE, SETTINGS_ACK].concat()
}

/// The header block of the first call of a connection, or of a further one.
fn headers(first: bool) -> Vec<u8> {
    if !first {
        return INDEXED_HEADERS.to_vec();
    }
    let mut headers = vec![0x83, 0x86];
    // `:path`, `:authority` and `content-type` have names in the static table; their values enter the dynamic one.
    for (name, value) in [(4, PATH), (1, b"limits"), (31, b"application/grpc")] {
        headers.push(0x40 | name);
        headers.push(u8::try_from(value.len()).expect("it is short"));
        headers.extend_from_slice(value);
    }
    headers.extend_from_slice(b"\x40\x02te\x08trailers");
    headers
}

/// A call on stream `stream` with an encoded message.
pub(super) fn call(stream: u32, message: &[u8], first: bool, out: &mut Vec<u8>) {
    let headers = headers(first);
    frame(HEADERS, END_HEADERS, stream, headers.len(), out);
    out.extend_from_slice(&headers);
    frame(DATA, END_STREAM, stream, 5 + message.len(), out);
    out.push(0);
    let length = u32::try_from(message.len()).expect("it is short");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
}

fn frame(kind: u8, flags: u8, stream: u32, length: usize, out: &mut Vec<u8>) {
    let [_, high, middle, low] = u32::try_from(length).expect("it is short").to_be_bytes();
    out.extend_from_slice(&[high, middle, low, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// The replies of a connection so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    head: [u8; 9],
    head_length: usize,
    /// Remaining bytes of a frame's payload.
    payload_left: usize,
    /// Messages, and completed calls.
    pub(super) messages: u64,
    pub(super) ended: u64,
}

impl Answers {
    /// Parses bytes that were read.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let skipped = self.payload_left.min(bytes.len());
            self.payload_left -= skipped;
            bytes = &bytes[skipped..];
            let length = (self.head.len() - self.head_length).min(bytes.len());
            self.head[self.head_length..self.head_length + length]
                .copy_from_slice(&bytes[..length]);
            self.head_length += length;
            bytes = &bytes[length..];
            if self.head_length == self.head.len() {
                self.head_length = 0;
                self.frame()?;
            }
        }
        Ok(())
    }

    fn frame(&mut self) -> io::Result<()> {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.payload_left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            DATA if self.payload_left > 0 => self.messages += 1,
            HEADERS if flags & END_STREAM != 0 => self.ended += 1,
            RST_STREAM | GOAWAY => return Err(io::Error::other("the server rejected a call")),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_cut_anywhere_are_counted() {
        let mut bytes = Vec::new();
        frame(4, 0, 0, 0, &mut bytes);
        frame(HEADERS, END_HEADERS, 1, 1, &mut bytes);
        bytes.push(0x88);
        frame(DATA, 0, 1, 3, &mut bytes);
        bytes.extend_from_slice(b"abc");
        frame(HEADERS, END_HEADERS | END_STREAM, 1, 1, &mut bytes);
        bytes.push(0x88);
        for cut in 0..bytes.len() {
            let mut answers = Answers::default();
            let (first, second) = bytes.split_at(cut);
            answers.read(first).unwrap();
            answers.read(second).unwrap();
            assert_eq!((answers.messages, answers.ended), (1, 1), "cut at {cut}");
        }
        let mut rejected = Vec::new();
        frame(RST_STREAM, 0, 1, 4, &mut rejected);
        assert!(Answers::default().read(&rejected).is_err());
    }
}
