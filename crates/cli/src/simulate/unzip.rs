//! Files of gzip, also those that end before their end.

use std::{
    io::{self, ErrorKind, Read},
    sync::{Arc, OnceLock},
};

use flate2::read::MultiGzDecoder;

/// What became wrong with a file in its midst, if anything did.
pub(super) type Damage = Arc<OnceLock<String>>;

/// What a file of gzip holds, as far as it can be read: what stands before the place where it is cut
/// or damaged is no less true for that.
pub(super) struct Unzip<R> {
    decoder: MultiGzDecoder<R>,
    /// Whether something has been read.
    begun: bool,
    damage: Damage,
}

impl<R: Read> Unzip<R> {
    /// What `bytes` holds. What is wrong with them is put into `damage`.
    pub(super) fn new(bytes: R, damage: Damage) -> Self {
        Self { decoder: MultiGzDecoder::new(bytes), begun: false, damage }
    }
}

impl<R: Read> Read for Unzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.damage.get().is_some() {
            return Ok(0);
        }
        match self.decoder.read(buffer) {
            Ok(count) => {
                self.begun |= count > 0;
                Ok(count)
            }
            Err(error) if self.begun && error.kind() != ErrorKind::Interrupted => {
                self.damage.get_or_init(|| error.to_string());
                Ok(0)
            }
            error => error,
        }
    }
}
