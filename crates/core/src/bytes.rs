//! Numbers as bytes, little-endian: the parts of the byte forms of all algorithms.
//!
//! Invariant: a length that the bytes merely claim allocates nothing.

use std::time::Duration;

use crate::{parameters::LimitError, time::Timestamp};

/// Greatest count of units that a state holds.
pub(crate) const MAX_COUNT: u64 = 1 << 50;

/// Set in the first byte of a limit, beside its code.
pub(crate) const BORROW: u8 = 0x10;
pub(crate) const COUNT_ALL: u8 = 0x10;
pub(crate) const ALIGN_CLOCK: u8 = 0x20;
pub(crate) const KEEP: u8 = 0x20;
pub(crate) const FLAGS: u8 = 0xf0;

/// The longest time that a state may take to drain, in microseconds: 2^50, 35 years.
pub const MAX_DRAIN: u64 = 1 << 50;
/// No time in a state lies beyond the last timestamp and the longest debt; in microseconds since the Unix epoch.
pub const MAX_TIME: u64 = Timestamp::MAX.as_micros() + MAX_DRAIN;

/// Bytes that are not a state that this version can read. The text completes "key `k` has ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Written by a newer version.
    #[error(
        "state of version {0}, and this version of Sluicegate reads up to 4; upgrade Sluicegate"
    )]
    Version(u8),
    /// Written by another program: no version of Sluicegate begins a state so.
    #[error("a value that Sluicegate did not write")]
    Foreign,
    /// It begins as a state does, and does not go on so.
    #[error("damaged state: {0}")]
    Damaged(&'static str),
}

/// The header of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Which algorithm, and which form of its parameters.
    pub(crate) code: u8,
    pub(crate) flags: u8,
    /// `N`.
    pub(crate) limit: u32,
}

impl Head {
    pub(crate) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends numbers, little-endian.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    /// The low `width` bytes of `value`.
    pub(crate) fn uint(&mut self, value: u64, width: usize) {
        self.0.extend_from_slice(&value.to_le_bytes()[..width]);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    pub(crate) fn head(&mut self, code: u8, flags: u8, limit: u32) {
        self.uint((code | flags).into(), 1);
        self.uint(limit.into(), 4);
    }
}

/// Reads what [`Writer`] wrote.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], StateError> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or(StateError::Damaged("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next `count` bytes, to be read by themselves.
    pub(crate) fn part(&mut self, count: usize) -> Result<Self, StateError> {
        self.take(count).map(Self)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, StateError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn uint(&mut self, width: usize) -> Result<u64, StateError> {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, StateError> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    pub(crate) fn period(&mut self) -> Result<Duration, StateError> {
        self.uint(6).map(Duration::from_micros)
    }

    pub(crate) fn time(&mut self) -> Result<u64, StateError> {
        at_most(self.uint(7)?, MAX_TIME, "a time is out of bounds")
    }

    pub(crate) fn count(&mut self) -> Result<u64, StateError> {
        at_most(self.uint(7)?, MAX_COUNT, "a count is out of bounds")
    }
}

fn at_most(value: u64, max: u64, message: &'static str) -> Result<u64, StateError> {
    if value <= max { Ok(value) } else { Err(StateError::Damaged(message)) }
}

impl From<LimitError> for StateError {
    fn from(_: LimitError) -> Self {
        Self::Damaged("a limit has a parameter outside its domain")
    }
}
