//! A store as a file: so that a restart is no amnesty.
//!
//! ```text
//! "sluicegate state\n" | version 1, 1 byte | the keys of the hash, 4 x 8 bytes
//! records: hash, 8 bytes | length, 4 bytes | the entry, in its own byte form
//! end: hash 0, length 0xffffffff | how many records, 8 bytes | SHA-256 of all before it, 32 bytes
//! ```
//!
//! Numbers are little-endian. A file is read whole or not at all: one that ends early, has been
//! changed, or was written by a later version is an error, and never half a store.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};
use sluicegate_core::{Entry, StateError, Timestamp};

use crate::{MemoryStore, WhenFull};

const MAGIC: &[u8; 17] = b"sluicegate state\n";
const VERSION: u8 = 1;
const END: u32 = u32::MAX;
/// No entry is longer: it is read only as far as its bytes arrive.
const MAX_ENTRY: u32 = 1 << 30;

/// Why a file is no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It could not be read or written.
    #[error("state file: {0}")]
    Io(#[from] io::Error),
    /// It is another kind of file, ends early, or has been changed.
    #[error("state file is damaged: {0}")]
    Damaged(&'static str),
    /// A later version wrote it.
    #[error("state file has version {0}, and this version of sluicegate reads up to {VERSION}")]
    Version(u8),
    /// It holds a state that cannot be read.
    #[error("state file is damaged: {0}")]
    State(#[from] StateError),
}

impl MemoryStore {
    /// Writes every key that has not recovered at `now`, and tells how many. Decisions go on
    /// meanwhile; each key is written as it stands when its turn comes.
    ///
    /// # Errors
    /// What `out` says.
    pub fn save(&self, out: impl Write, now: Timestamp) -> Result<u64, SnapshotError> {
        let mut out = Hashing { inner: out, digest: Sha256::new() };
        out.write_all(MAGIC)?;
        out.write_all(&[VERSION])?;
        for key in self.hash_keys() {
            out.write_all(&key.to_le_bytes())?;
        }
        let mut count = 0_u64;
        let mut failed = None;
        self.for_each(now, |hash, entry| {
            let bytes = entry.encode();
            let length = u32::try_from(bytes.len()).unwrap_or(END);
            if failed.is_none() && length <= MAX_ENTRY {
                failed = out.record(hash, length, &bytes).err();
                count += 1;
            }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        out.record(0, END, &count.to_le_bytes())?;
        let digest = out.digest.finalize();
        out.inner.write_all(&digest)?;
        out.inner.flush()?;
        Ok(count)
    }

    /// The store that [`MemoryStore::save`] wrote, without what has recovered at `now`.
    ///
    /// # Errors
    /// [`SnapshotError`] for anything but a whole, unchanged file of a version that is known.
    pub fn load(
        input: impl Read,
        now: Timestamp,
        max_bytes: usize,
        when_full: WhenFull,
    ) -> Result<Self, SnapshotError> {
        let mut input = Hashing { inner: input, digest: Sha256::new() };
        if input.array()? != *MAGIC {
            return Err(SnapshotError::Damaged("it does not begin as one"));
        }
        let [version] = input.array()?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let mut keys = [0; 4];
        for key in &mut keys {
            *key = u64::from_le_bytes(input.array()?);
        }
        let store = Self::with_keys(keys, max_bytes, when_full);
        let mut count = 0_u64;
        let mut bytes = Vec::new();
        loop {
            let hash = u64::from_le_bytes(input.array()?);
            let length = u32::from_le_bytes(input.array()?);
            if length == END {
                break;
            }
            if length > MAX_ENTRY {
                return Err(SnapshotError::Damaged("an entry is too long"));
            }
            bytes.clear();
            input.by_ref().take(length.into()).read_to_end(&mut bytes)?;
            if bytes.len() != length as usize {
                return Err(SnapshotError::Damaged("it ends early"));
            }
            store.restore(hash, Entry::decode(&bytes)?, now);
            count += 1;
        }
        if u64::from_le_bytes(input.array()?) != count {
            return Err(SnapshotError::Damaged("it has another number of keys than it says"));
        }
        let expected: [u8; 32] = input.digest.clone().finalize().into();
        if input.array()? != expected {
            return Err(SnapshotError::Damaged("its checksum is another"));
        }
        if input.inner.read(&mut [0])? != 0 {
            return Err(SnapshotError::Damaged("it goes on after its end"));
        }
        Ok(store)
    }
}

/// Reads or writes, and keeps the checksum of what went through.
struct Hashing<T> {
    inner: T,
    digest: Sha256,
}

impl<T: Write> Hashing<T> {
    fn record(&mut self, hash: u64, length: u32, bytes: &[u8]) -> io::Result<()> {
        self.write_all(&hash.to_le_bytes())?;
        self.write_all(&length.to_le_bytes())?;
        self.write_all(bytes)
    }
}

impl<T: Read> Hashing<T> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SnapshotError::Damaged("it ends early"),
            _ => error.into(),
        })?;
        Ok(bytes)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.digest.update(&bytes[..read]);
        Ok(read)
    }
}
