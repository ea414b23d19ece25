//! Saving a store to a file, so that a restart does not reset limits.
//!
//! ```text
//! "sluicegate state\n" | version 4, 1 byte | the keys of the hash, 4 x 8 bytes
//! records: hash, 8 bytes | kind, 4 bytes | of each kind:
//!   a key       kind is the length of what follows, at most 2^30: the encoded entry
//!   in a slot   kind is 2^31 and the length: a key whose state was in its slot, so that its policy had a number
//!   a segment   kind 0xfffffffe | depth, 1 byte | seed, 2 bytes: holds the keys up to the next one
//! end: hash 0, kind 0xffffffff | how many keys, 8 bytes | SHA-256 of all before it, 32 bytes
//! ```
//!
//! Numbers are little-endian, times microseconds since the Unix epoch. Segments come in the order of their
//! hashes and cover all of them, so that a table can be laid out as it was; see
//! [`restore`](crate::restore).
//!
//! A file is read whole or not at all: one that ends early, has been changed, or was written by another
//! version is an error, and never half a store.

use std::io::{self, Read, Seek, SeekFrom, Write};

use sha2::{Digest, Sha256};
use sluicegate_core::{Entry, StateError, Timestamp, reached};

use crate::{
    MemoryStore, WhenFull,
    shard::{SHARD_BITS, SHARDS},
    slot::OVERFLOW,
};

const MAGIC: &[u8; 17] = b"sluicegate state\n";
const VERSION: u8 = 4;
/// Kinds of records other than keys.
const END: u32 = u32::MAX;
const SEGMENT: u32 = u32::MAX - 1;
/// Upper bound on the bytes of an entry. They are read as they arrive, and not allocated before.
const MAX_ENTRY: u32 = 1 << 30;
/// Set in the kind of a key whose state was in its slot.
const IN_SLOT: u32 = 1 << 31;

/// Why a state file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It could not be read or written.
    #[error("state file: {0}")]
    Io(#[from] io::Error),
    /// It is another kind of file.
    #[error("invalid state file: expected a file that `MemoryStore::save` wrote")]
    NotStateFile,
    /// It ends early, or has been changed.
    #[error("state file is damaged: {0}")]
    Damaged(&'static str),
    /// Another version wrote it.
    #[error("state file has version {0}, and this version of sluicegate reads version {VERSION}")]
    Version(u8),
    /// Its keys do not fit into the store.
    #[error(
        "invalid bound of {max_bytes} bytes: expected at least {needed} for the keys of the state file"
    )]
    TooLarge {
        /// The bytes that the keys need.
        needed: usize,
        /// The bound.
        max_bytes: usize,
    },
    /// It holds a state that cannot be read.
    #[error("state file is damaged: {0}")]
    State(#[from] StateError),
}

/// A segment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedSegment {
    /// One of its hashes.
    pub(crate) hash: u64,
    /// Number of bits of the hash, after those of the shard, that its keys share.
    pub(crate) depth: u32,
    pub(crate) seed: usize,
}

/// A key of a file.
#[derive(Debug)]
pub(crate) struct SavedKey {
    pub(crate) hash: u64,
    pub(crate) entry: Entry,
    /// Whether its state was in its slot.
    pub(crate) in_slot: bool,
}

/// One record of a file.
#[derive(Debug)]
pub(crate) enum Record {
    Segment(SavedSegment),
    Key(SavedKey),
}

impl MemoryStore {
    /// Writes every key that has not recovered at `now`, and returns their number. Other threads can decide at the same time;
    /// each key is written once, as it is when its segment is reached, even if the table grows.
    ///
    /// ```
    /// use std::io::Cursor;
    /// use sluicegate_core::{Clock, Operation, Policy};
    /// use sluicegate_memory::{MemoryStore, SystemClock, WhenFull};
    ///
    /// let (store, clock) = (MemoryStore::new(), SystemClock::new());
    /// let policy: Policy = "fixed-window:1/1h".parse()?;
    /// assert!(store.apply(b"user7", &policy, clock.now(), Operation::Take(1))?.allowed());
    ///
    /// let mut file = Vec::new();
    /// assert_eq!(store.save(&mut file, clock.now())?, 1);
    /// let loaded = MemoryStore::load(Cursor::new(file), clock.now(), 64 << 20, WhenFull::Deny)?;
    /// assert!(!loaded.apply(b"user7", &policy, clock.now(), Operation::Take(1))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::Io`] from `out`.
    pub fn save(&self, out: impl Write, now: Timestamp) -> Result<u64, SnapshotError> {
        let mut out = ChecksumIo { inner: out, digest: Sha256::new() };
        out.write_all(MAGIC)?;
        out.write_all(&[VERSION])?;
        for key in self.keys {
            out.write_all(&key.to_le_bytes())?;
        }
        let mut count = 0_u64;
        for shard in 0..SHARDS {
            let mut start = Some(0);
            while let Some(from) = start {
                let (written, next) = self.save_segment(&mut out, shard, from, now)?;
                debug_assert!(
                    next.is_none_or(|next| next > from),
                    "a walk through a shard goes back"
                );
                (count, start) = (count + written, next);
            }
        }
        out.record(0, END, &count.to_le_bytes())?;
        let digest = out.digest.finalize();
        out.inner.write_all(&digest)?;
        out.inner.flush()?;
        Ok(count)
    }

    /// Writes the segment of a shard whose hashes start at `from`. Returns its number of keys and the start of the next.
    /// It is locked only while its slots are copied.
    fn save_segment(
        &self,
        out: &mut ChecksumIo<impl Write>,
        shard: usize,
        from: u64,
        now: Timestamp,
    ) -> Result<(u64, Option<u64>), SnapshotError> {
        let (locked, next) = self.shards.by_index(shard).lock_range(from);
        let slots: Vec<_> = locked.slots().collect();
        let (depth, seed) = (locked.depth(), locked.seed());
        drop(locked);
        let hash = self.shards.first_hash(shard) | from >> SHARD_BITS;
        debug_assert!(
            slots.iter().all(|(own, _)| {
                let place = own << SHARD_BITS;
                place >= from && next.is_none_or(|next| place < next)
            }),
            "a segment holds a key of another one"
        );
        // A depth is at most 28, and a seed below 2^12.
        let ([depth, ..], [low, high, ..]) = (depth.to_le_bytes(), seed.to_le_bytes());
        out.record(hash, SEGMENT, &[depth, low, high])?;
        let mut count = 0;
        for (hash, slot) in slots {
            let in_slot = slot.policy_number() != OVERFLOW;
            let entry = if in_slot {
                self.simple_entry(slot)
            } else {
                // One at a time, because an entry may be long and the segment is locked for the copy. The key may have
                // moved by now; it is gone only if it was reset or has recovered.
                let entry = self.with_entry_of(hash, Entry::clone);
                reached!(SnapshotMissesRemovedEntry if entry.is_none());
                entry
            };
            let Some(entry) = entry.filter(|entry| !entry.is_over(now)) else {
                continue;
            };
            let bytes = entry.encode();
            let length = u32::try_from(bytes.len()).unwrap_or(END);
            if length <= MAX_ENTRY {
                out.record(hash, if in_slot { IN_SLOT | length } else { length }, &bytes)?;
                count += 1;
            }
        }
        Ok((count, next))
    }

    /// Loads a store that [`MemoryStore::save`] wrote, without keys that have recovered at `now`. The file is read
    /// twice: first to check all of it, because a damaged file must not become a part of a store.
    ///
    /// Every key is kept. The bound of the saved store is enough for them.
    ///
    /// ```
    /// use std::io::Cursor;
    /// use sluicegate_core::Timestamp;
    /// use sluicegate_memory::{MemoryStore, SnapshotError, WhenFull};
    ///
    /// let other = Cursor::new("not a state file".repeat(2));
    /// let loaded = MemoryStore::load(other, Timestamp::EPOCH, 64 << 20, WhenFull::Deny);
    /// assert!(matches!(loaded, Err(SnapshotError::NotStateFile)));
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError`] unless the file is whole, unchanged and of this version, and `max_bytes` is enough for it.
    pub fn load(
        mut input: impl Read + Seek,
        now: Timestamp,
        max_bytes: usize,
        when_full: WhenFull,
    ) -> Result<Self, SnapshotError> {
        let start = input.stream_position()?;
        let (keys, records) = Records::open(&mut input)?;
        let store = Self::with_hash_keys(keys, max_bytes, when_full);
        let survey = store.survey(records, now)?;
        input.seek(SeekFrom::Start(start))?;
        let (_, records) = Records::open(&mut input)?;
        store.restore(records, &survey, now)?;
        Ok(store)
    }
}

/// Reads the records of a file.
pub(crate) struct Records<R> {
    input: ChecksumIo<R>,
    keys: u64,
    buffer: Vec<u8>,
}

impl<R: Read> Records<R> {
    /// Reads the head of a file: the keys of the hash.
    fn open(input: R) -> Result<([u64; 4], Self), SnapshotError> {
        let mut input = ChecksumIo { inner: input, digest: Sha256::new() };
        let mut start = Vec::with_capacity(MAGIC.len());
        input.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
        if start != MAGIC {
            return Err(match resembles_magic(&start) {
                true => SnapshotError::Damaged("its beginning is incomplete or has been changed"),
                false => SnapshotError::NotStateFile,
            });
        }
        let [version] = input.array()?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let mut keys = [0; 4];
        for key in &mut keys {
            *key = u64::from_le_bytes(input.array()?);
        }
        Ok((keys, Self { input, keys: 0, buffer: Vec::new() }))
    }

    /// The next record; `None` at the end of a complete file.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, SnapshotError> {
        let hash = u64::from_le_bytes(self.input.array()?);
        match u32::from_le_bytes(self.input.array()?) {
            END => self.end().map(|()| None),
            SEGMENT => {
                let [depth] = self.input.array()?;
                let seed = u16::from_le_bytes(self.input.array()?).into();
                Ok(Some(Record::Segment(SavedSegment { hash, depth: depth.into(), seed })))
            }
            kind => self.key(hash, kind).map(|key| Some(Record::Key(key))),
        }
    }

    /// Reads the rest of a key.
    fn key(&mut self, hash: u64, kind: u32) -> Result<SavedKey, SnapshotError> {
        let length = kind & !IN_SLOT;
        if length > MAX_ENTRY {
            return Err(SnapshotError::Damaged("an entry is too long"));
        }
        self.buffer.clear();
        self.input.by_ref().take(length.into()).read_to_end(&mut self.buffer)?;
        if self.buffer.len() != length as usize {
            return Err(SnapshotError::Damaged("it ends early"));
        }
        self.keys += 1;
        Ok(SavedKey { hash, entry: Entry::decode(&self.buffer)?, in_slot: kind & IN_SLOT != 0 })
    }

    fn end(&mut self) -> Result<(), SnapshotError> {
        if u64::from_le_bytes(self.input.array()?) != self.keys {
            return Err(SnapshotError::Damaged("the number of its keys is wrong"));
        }
        let expected: [u8; 32] = self.input.digest.clone().finalize().into();
        if self.input.array()? != expected {
            return Err(SnapshotError::Damaged("its checksum is wrong"));
        }
        if self.input.inner.read(&mut [0])? != 0 {
            return Err(SnapshotError::Damaged("it goes on after its end"));
        }
        Ok(())
    }
}

/// Whether a file that begins with `start` may be a damaged state file: cut, zeroed, or with a few wrong bytes.
fn resembles_magic(start: &[u8]) -> bool {
    let equal = start.iter().zip(MAGIC).filter(|(found, expected)| found == expected).count();
    2 * equal > start.len() || start.iter().all(|byte| *byte == 0)
}

/// A reader or writer that computes the checksum of its bytes.
struct ChecksumIo<T> {
    inner: T,
    digest: Sha256,
}

impl<T: Write> ChecksumIo<T> {
    fn record(&mut self, hash: u64, kind: u32, bytes: &[u8]) -> io::Result<()> {
        self.write_all(&hash.to_le_bytes())?;
        self.write_all(&kind.to_le_bytes())?;
        self.write_all(bytes)
    }
}

impl<T: Read> ChecksumIo<T> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SnapshotError::Damaged("it ends early"),
            _ => error.into(),
        })?;
        Ok(bytes)
    }
}

impl<T: Write> Write for ChecksumIo<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for ChecksumIo<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.digest.update(&bytes[..read]);
        Ok(read)
    }
}
