//! Data that arrives in pieces.

use std::io::Read;

/// A source that returns one byte at a time if it is short, else as many as its own bytes select: the fuzzer chooses
/// the cuts.
pub(crate) struct Pieces<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) const fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.data[self.at..];
        let Some(first) = rest.first() else { return Ok(0) };
        let wanted = if self.data.len() <= 256 { 1 } else { 1 + usize::from(*first) };
        let length = wanted.min(rest.len()).min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.at += length;
        Ok(length)
    }
}
