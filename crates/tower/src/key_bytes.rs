//! The bytes of a key, and the encoding of its parts.

use std::ops::Deref;

/// The bytes of a key: in an array, or in a vector if they are longer, which is rare.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    inline: [u8; INLINE_BYTES],
    /// Number of bytes in `inline`.
    length: usize,
    /// All bytes, once they do not fit in `inline`.
    heap: Vec<u8>,
}

pub(crate) const INLINE_BYTES: usize = 96;

impl Bytes {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { inline: [0; INLINE_BYTES], length: 0, heap: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        match self.inline.get_mut(self.length) {
            Some(free) if self.heap.is_empty() => {
                *free = byte;
                self.length += 1;
            }
            _ => self.extend_from_slice(&[byte]),
        }
    }

    #[inline]
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.inline.get_mut(self.length..end) {
            Some(free) if self.heap.is_empty() => {
                free.copy_from_slice(bytes);
                self.length = end;
            }
            _ => self.extend_heap(bytes),
        }
    }

    /// Whether the bytes are in `inline`.
    #[inline]
    pub(crate) const fn is_inline(&self) -> bool {
        self.heap.is_empty()
    }

    /// Shortens the key to its first `length` bytes, which were in `inline` before others followed.
    #[inline]
    pub(crate) fn cut(&mut self, length: usize) {
        self.length = length;
        if !self.heap.is_empty() {
            self.heap = Vec::new();
        }
    }

    /// The next `COUNT` free bytes of `inline`.
    #[inline]
    fn free<const COUNT: usize>(&mut self) -> Option<&mut [u8; COUNT]> {
        let free = self.inline.get_mut(self.length..)?.first_chunk_mut()?;
        self.heap.is_empty().then_some(free)
    }

    #[cold]
    fn extend_heap(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.length]);
        }
        self.heap.extend_from_slice(bytes);
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.length] } else { &self.heap }
    }
}

/// Adds that a part is missing.
#[inline]
pub(crate) fn push_missing(key: &mut Bytes) {
    key.extend_from_slice(MISSING);
}

/// Instead of a part that is missing.
const MISSING: &[u8] = b"-,";

/// Adds bytes as a netstring: `5:login,`.
#[inline]
pub(crate) fn push(bytes: &[u8], key: &mut Bytes) {
    match u8::try_from(bytes.len()) {
        Ok(length @ ..10) => key.push(b'0' + length),
        _ => key.extend_from_slice(itoa::Buffer::new().format(bytes.len()).as_bytes()),
    }
    key.push(b':');
    key.extend_from_slice(bytes);
    key.push(b',');
}

/// As [`push`], for the first `length` of sixteen bytes, given as two little-endian numbers. All sixteen are written,
/// which needs no loop.
#[inline]
pub(crate) fn push_short(halves: [u64; 2], length: u8, key: &mut Bytes) {
    let count = usize::from(length.min(16));
    let [low, high] = halves.map(u64::to_le_bytes);
    let Some(free) = key.free::<20>() else { return push(&[low, high].concat()[..count], key) };
    let (digits, head) = match length {
        ..10 => (2, [b'0' + length, b':', 0]),
        10.. => (3, [b'1', b'0' + length - 10, b':']),
    };
    free[..3].copy_from_slice(&head);
    free[digits..digits + 8].copy_from_slice(&low);
    free[digits + 8..digits + 16].copy_from_slice(&high);
    free[digits + count] = b',';
    key.length += digits + count + 1;
}
