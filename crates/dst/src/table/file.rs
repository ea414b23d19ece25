//! The file of a snapshot: while it is written, other things happen.

use std::io::{self, Write};

use crate::random::Random;

/// One in so many writes takes only a part of its bytes.
const SHORT_WRITES: u64 = 50;

/// A file that is being written.
pub(super) struct FileWriter<'a> {
    random: Random,
    bytes: Vec<u8>,
    /// The bytes that the disk has space for.
    space: usize,
    /// What happens meanwhile, as long as it returns true, and the writes from one to the next.
    meanwhile: Option<&'a mut dyn FnMut() -> io::Result<bool>>,
    every: u64,
    writes: u64,
}

impl<'a> FileWriter<'a> {
    pub(super) fn new(
        random: Random,
        space: usize,
        meanwhile: &'a mut dyn FnMut() -> io::Result<bool>,
    ) -> Self {
        let every = 1 + random.below(1 << random.below(12));
        Self { random, bytes: Vec::new(), space, meanwhile: Some(meanwhile), every, writes: 0 }
    }

    /// What was written.
    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

impl Write for FileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.space {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.writes += 1;
        if self.writes.is_multiple_of(self.every)
            && let Some(meanwhile) = &mut self.meanwhile
            && !meanwhile()?
        {
            self.meanwhile = None;
        }
        let is_short = bytes.len() > 1 && self.random.below(SHORT_WRITES) == 0;
        let taken = if is_short { &bytes[..bytes.len() / 2] } else { bytes };
        self.bytes.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
