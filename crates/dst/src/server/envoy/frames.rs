//! Which calls are complete in the bytes that the server has read.

/// Length of the preface that a client of HTTP/2 sends first.
const PREFACE: usize = 24;
/// Length of the head of a frame.
const HEAD: usize = 9;
/// The type of a frame of data.
const DATA: u8 = 0;
/// The flag of the last frame of a stream.
const END_STREAM: u8 = 1;

/// The bytes of a connection that are no complete frame yet.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    has_begun: bool,
}

impl Frames {
    /// The streams that end with these bytes, in order.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<u32> {
        self.bytes.extend_from_slice(bytes);
        if !self.has_begun && self.bytes.len() >= PREFACE {
            self.bytes.drain(..PREFACE);
            self.has_begun = true;
        }
        let mut ended = Vec::new();
        while self.has_begun
            && let Some(&[a, b, c, kind, flags, d, e, f, g]) = self.bytes.first_chunk::<HEAD>()
        {
            let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or_default();
            if self.bytes.len() < HEAD + length {
                break;
            }
            if kind == DATA && flags & END_STREAM != 0 {
                ended.push(u32::from_be_bytes([d, e, f, g]));
            }
            self.bytes.drain(..HEAD + length);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_byte_by_byte_find_the_end_of_each_stream() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // Settings, a head, data that is not the last, and the last data of two streams.
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        bytes.extend([0, 0, 1, 1, 4, 0, 0, 0, 1, 0]);
        bytes.extend([0, 0, 2, 0, 0, 0, 0, 0, 1, 7, 7]);
        bytes.extend([0, 0, 0, 0, 1, 0, 0, 0, 3]);
        bytes.extend([0, 0, 1, 0, 1, 0, 0, 1, 1, 7]);
        let mut frames = Frames::default();
        let ended: Vec<_> = bytes.chunks(1).flat_map(|byte| frames.read(byte)).collect();
        assert_eq!(ended, [3, 257]);
        assert_eq!(Frames::default().read(&bytes), [3, 257]);
    }
}
