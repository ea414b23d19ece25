//! Incomplete input of a client, by the framing of its version of HTTP.

use std::mem;

use super::limits::MAX_HEAD;

/// The first bytes of a client of HTTP/2.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Frame types: the headers of a request, and their continuation.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// The flag of both that ends the headers.
const END_HEADERS: u8 = 4;

/// The state of a client's input.
#[derive(Debug)]
pub(super) enum Input {
    /// This many bytes of [`PREFACE`], and nothing else.
    Unknown(usize),
    /// HTTP/1.1; whether the head of a request is incomplete.
    One {
        begun: bool,
        /// Bytes since the last request.
        bytes: usize,
    },
    Two(Frames),
}

/// The position of a client of HTTP/2 in its frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    head: [u8; 9],
    /// Bytes of the frame's head that have arrived.
    had: usize,
    /// The length of its body, and the part that is missing.
    length: usize,
    to_come: usize,
    /// Whether headers continue in the next frame.
    open: bool,
    /// The latest stream, and the streams that have begun since [`Input::take_new`].
    latest: u32,
    new: usize,
}

impl Default for Input {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

impl Input {
    /// Whether something is incomplete.
    pub(super) const fn begun(&self) -> bool {
        match self {
            Self::Unknown(had) => *had > 0,
            Self::One { begun, .. } => *begun,
            Self::Two(frames) => frames.had > 0 || frames.to_come > 0 || frames.open,
        }
    }

    /// A request of HTTP/1.1 is complete. On HTTP/2 the frames show it.
    pub(super) const fn finished(&mut self) {
        if let Self::One { begun, bytes } = self {
            (*begun, *bytes) = (false, 0);
        }
    }

    /// The bytes of incomplete input.
    pub(super) fn unfinished(&self) -> usize {
        match self {
            Self::Unknown(_) => 0,
            Self::One { bytes, .. } => *bytes,
            // A few compressed bytes may expand to long headers.
            Self::Two(frames) if frames.open => usize::try_from(MAX_HEAD).expect("32 KiB"),
            Self::Two(frames) if frames.to_come > 0 => frames.length - frames.to_come,
            Self::Two(_) => 0,
        }
    }

    /// Requests that have begun on HTTP/2 since the last call, malformed ones included.
    pub(super) const fn take_new(&mut self) -> usize {
        match self {
            Self::Two(frames) => mem::replace(&mut frames.new, 0),
            Self::Unknown(_) | Self::One { .. } => 0,
        }
    }

    #[inline]
    pub(super) fn read(&mut self, bytes: &[u8]) {
        match self {
            Self::One { begun, bytes: sum } => (*begun, *sum) = (true, *sum + bytes.len()),
            Self::Two(frames) => frames.read(bytes),
            Self::Unknown(had) => {
                let expected = &PREFACE[*had..];
                let length = expected.len().min(bytes.len());
                let (front, behind) = bytes.split_at(length);
                if front != &expected[..length] {
                    *self = Self::One { begun: true, bytes: *had + bytes.len() };
                    return;
                }
                *had += length;
                if *had == PREFACE.len() {
                    let mut frames = Frames::default();
                    frames.read(behind);
                    *self = Self::Two(frames);
                }
            }
        }
    }
}

impl Frames {
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.to_come > 0 {
                let length = self.to_come.min(bytes.len());
                self.to_come -= length;
                bytes = &bytes[length..];
                continue;
            }
            let length = (self.head.len() - self.had).min(bytes.len());
            let (front, behind) = bytes.split_at(length);
            self.head[self.had..self.had + length].copy_from_slice(front);
            self.had += length;
            bytes = behind;
            if self.had == self.head.len() {
                let [high, middle, low, kind, flags, stream @ ..] = self.head;
                self.length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.to_come = self.length;
                if kind == HEADERS || kind == CONTINUATION {
                    self.open = flags & END_HEADERS == 0;
                }
                let stream = u32::from_be_bytes(stream);
                if kind == HEADERS && stream > self.latest {
                    self.latest = stream;
                    self.new += 1;
                }
                self.had = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether something has begun after each of `parts` came.
    fn begun(parts: &[&[u8]]) -> Vec<bool> {
        let mut input = Input::default();
        let begun = parts.iter().map(|part| {
            input.read(part);
            input.begun()
        });
        begun.collect()
    }

    #[test]
    fn input_head_in_parts_is_incomplete_until_the_request() {
        assert_eq!(begun(&[b"G", b"ET / HTTP/1.1\r\n"]), [true, true]);
        assert_eq!(begun(&[b"PRI * HTTP/1.1\r\n"]), [true]);
        let mut input = Input::default();
        input.read(b"POST / HTTP/1.1\r\n\r\n");
        input.finished();
        assert!(!input.begun());
        input.read(b"the body");
        input.finished();
        assert!(!input.begun());
    }

    #[test]
    fn input_unfinished_bytes_are_those_of_a_head_or_a_frame() {
        let mut input = Input::default();
        input.read(b"PRI * HTTP/1.1");
        input.read(b"\r\n");
        assert_eq!(input.unfinished(), 16);
        input.finished();
        assert_eq!(input.unfinished(), 0);
        let mut input = Input::default();
        input.read(PREFACE);
        input.read(&[0, 1, 0, 0, 0, 0, 0, 0, 1, 7, 7, 7]);
        assert_eq!(input.unfinished(), 3);
        input.read(&[7; 253]);
        assert_eq!(input.unfinished(), 0);
        input.read(&[0, 0, 1, HEADERS, 0, 0, 0, 0, 1, 0x82]);
        assert_eq!(input.unfinished(), 32 * 1024);
    }

    #[test]
    fn take_new_counts_each_request_once() {
        let headers = |stream: u8, flags: u8| [0, 0, 1, HEADERS, flags, 0, 0, 0, stream, 0x82];
        let mut input = Input::default();
        input.read(PREFACE);
        input.read(&[headers(1, 0), headers(3, END_HEADERS)].concat());
        // Trailers, and a frame in two parts.
        input.read(&headers(1, END_HEADERS));
        input.read(&headers(5, END_HEADERS)[..4]);
        assert_eq!(input.take_new(), 2);
        input.read(&headers(5, END_HEADERS)[4..]);
        assert_eq!((input.take_new(), input.take_new()), (1, 0));
    }

    #[test]
    fn input_frame_is_incomplete_until_its_last_byte() {
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let open_headers = [0, 0, 1, HEADERS, 0, 0, 0, 0, 1, 0x82];
        let continued = [0, 0, 1, CONTINUATION, END_HEADERS, 0, 0, 0, 1, 0x84];
        let parts: [&[u8]; 8] = [
            &PREFACE[..10],
            &PREFACE[10..],
            &ping,
            &ping[..3],
            &ping[3..11],
            &ping[11..],
            &open_headers,
            &continued,
        ];
        let expected = [true, false, false, true, true, false, true, false];
        assert_eq!(begun(&parts), expected);
        let all = [&PREFACE[..], &ping, &ping, &continued].concat();
        assert_eq!(begun(&[&all, &open_headers[..9]]), [false, true]);
    }
}
