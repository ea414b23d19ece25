//! Gzip files, also truncated ones.

use std::{
    io::{self, ErrorKind, Read},
    sync::{Arc, OnceLock},
};

use flate2::read::MultiGzDecoder;

/// Description of damage inside a file, if there is any.
pub(crate) type Damage = Arc<OnceLock<String>>;

/// The content of a gzip file up to its end, or to the first damage.
pub(crate) struct Unzip<R> {
    decoder: MultiGzDecoder<R>,
    has_content: bool,
    damage: Damage,
}

impl<R: Read> Unzip<R> {
    /// The content of `bytes`. Damage is reported in `damage`.
    pub(crate) fn new(bytes: R, damage: Damage) -> Self {
        Self { decoder: MultiGzDecoder::new(bytes), has_content: false, damage }
    }
}

impl<R: Read> Read for Unzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.damage.get().is_some() {
            return Ok(0);
        }
        match self.decoder.read(buffer) {
            Ok(count) => {
                self.has_content |= count > 0;
                Ok(count)
            }
            Err(error) if self.has_content && error.kind() != ErrorKind::Interrupted => {
                self.damage.get_or_init(|| error.to_string());
                Ok(0)
            }
            error => error,
        }
    }
}
