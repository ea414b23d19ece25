//! HTTP/2 as a client that does no more than it must: calls are bytes made beforehand, and of what
//! is answered only the ends of frames are looked at.

use std::io;

/// What a client says first, its settings, and that it takes 2 GiB on a connection.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\x00\x00";
/// That the settings of the server are known.
const KNOWN: &[u8] = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The fields of a call: as they are said the first time, for the table of the connection, and as
/// they are said from then on, by their places in it.
const PATH: &[u8] = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const BY_PLACE: [u8; 6] = [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];

/// What a connection begins with.
pub(super) fn greeting() -> Vec<u8> {
    [GREETING, KNOWN].concat()
}

/// The fields of the first call of a connection, or of one that follows.
fn fields(first: bool) -> Vec<u8> {
    if !first {
        return BY_PLACE.to_vec();
    }
    let mut fields = vec![0x83, 0x86];
    // `:path`, `:authority` and `content-type` are known by name; each value is to be kept.
    for (name, value) in [(4, PATH), (1, b"limits"), (31, b"application/grpc")] {
        fields.push(0x40 | name);
        fields.push(u8::try_from(value.len()).expect("it is short"));
        fields.extend_from_slice(value);
    }
    fields.extend_from_slice(b"\x40\x02te\x08trailers");
    fields
}

/// A call on stream `stream`: `message` is a whole message of the proto.
pub(super) fn call(stream: u32, message: &[u8], first: bool, out: &mut Vec<u8>) {
    let fields = fields(first);
    frame(HEADERS, END_HEADERS, stream, fields.len(), out);
    out.extend_from_slice(&fields);
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

/// The answers of a connection, as they come.
#[derive(Debug, Default)]
pub(super) struct Answers {
    head: [u8; 9],
    had: usize,
    /// How much of a frame's body is to come.
    to_come: usize,
    /// Messages, and calls that have ended.
    pub(super) messages: u64,
    pub(super) ended: u64,
}

impl Answers {
    /// Takes in what was read.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let skipped = self.to_come.min(bytes.len());
            self.to_come -= skipped;
            bytes = &bytes[skipped..];
            let length = (self.head.len() - self.had).min(bytes.len());
            self.head[self.had..self.had + length].copy_from_slice(&bytes[..length]);
            self.had += length;
            bytes = &bytes[length..];
            if self.had == self.head.len() {
                self.had = 0;
                self.frame()?;
            }
        }
        Ok(())
    }

    fn frame(&mut self) -> io::Result<()> {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.to_come = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            DATA if self.to_come > 0 => self.messages += 1,
            HEADERS if flags & END_STREAM != 0 => self.ended += 1,
            RST_STREAM | GOAWAY => return Err(io::Error::other("a call was refused")),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_wherever_they_are_cut() {
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
            let (front, behind) = bytes.split_at(cut);
            answers.read(front).unwrap();
            answers.read(behind).unwrap();
            assert_eq!((answers.messages, answers.ended), (1, 1), "cut at {cut}");
        }
        let mut refused = Vec::new();
        frame(RST_STREAM, 0, 1, 4, &mut refused);
        assert!(Answers::default().read(&refused).is_err());
    }
}
