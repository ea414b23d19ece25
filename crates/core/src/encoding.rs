//! The byte form of an [`Entry`]: what is kept of a key outside a process.
//!
//! Laid out so that Lua reads it with `struct.unpack` and exact doubles: all numbers little-endian
//! and of a width that what stands before them tells. `docs/state-format.md` is the specification, byte by byte.
//!
//! Invariants: what is decoded equals what was encoded; any bytes decode to an entry or to an
//! error, never to a guess; nothing is allocated by a length that the bytes merely claim.

use std::time::Duration;

use crate::{
    algorithm::{Limit, LimitError, MAX_COUNT, State},
    entry::{Entry, States},
    policy::{MAX_LIMITS, Policy},
    time::Timestamp,
};

/// The version of the byte form that is written.
const VERSION: u8 = 2;
/// Versions to come end here, so that a value whose first byte is a letter, a digit or a tab is known
/// to be of another program.
const LAST_VERSION: u8 = 7;
/// The one before it, in which the rest of a TAT always takes four bytes.
const WIDE: u8 = 1;

/// Set in the first byte of a limit, beside its code.
pub(crate) const BORROW: u8 = 0x10;
pub(crate) const COUNT_ALL: u8 = 0x10;
pub(crate) const ALIGN_CLOCK: u8 = 0x20;
pub(crate) const KEEP: u8 = 0x20;
const FLAGS: u8 = 0xf0;

/// No time in a state lies beyond the last timestamp and the longest debt.
pub(crate) const MAX_TIME: u64 = Timestamp::MAX.as_micros() + (1 << 50);

/// Bytes that are not a state which this version can read. Its text is what a key "holds".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Written by a newer version.
    #[error(
        "state of version {0}, and this version of Sluicegate reads up to 2; upgrade Sluicegate"
    )]
    Version(u8),
    /// Written by another program: no version of Sluicegate begins a state so.
    #[error("a value that Sluicegate did not write")]
    Foreign,
    /// It begins as a state does, and does not go on so.
    #[error("damaged state: {0}")]
    Damaged(&'static str),
}

impl Entry {
    /// The entry as bytes.
    ///
    /// ```
    /// use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
    ///
    /// let policy: Policy = "gcra:30/60s:burst=16".parse()?;
    /// let mut entry = None;
    /// let now = Timestamp::from_micros(1_700_000_000_000_000)?;
    /// let _ = apply(&policy, &mut entry, now, Operation::Take(1))?;
    ///
    /// let entry = entry.expect("a unit is in use");
    /// let bytes = entry.encode();
    /// assert_eq!(bytes.len(), 24);
    /// assert_eq!(Entry::decode(&bytes), Ok(entry));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(24));
        out.uint(VERSION.into(), 1);
        out.uint(self.states.len() as u64, 1);
        for (limit, state) in self.limits() {
            limit.encode(state, &mut out);
        }
        out.0
    }

    /// How many bytes [`encode`](Self::encode) makes, which it does not make.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut logs = 0;
        let mut out = Writer(Vec::with_capacity(24));
        out.uint(VERSION.into(), 1);
        out.uint(self.states.len() as u64, 1);
        for (limit, state) in self.limits() {
            let log = state.log_len();
            limit.encode(if log > 0 { &State::None } else { state }, &mut out);
            logs += log;
        }
        out.0.len() + logs
    }

    /// The entry that `bytes` say.
    ///
    /// # Errors
    /// [`StateError`] for what a later version wrote, and for anything that is no state.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let mut input = Reader(bytes);
        let version = match input.byte() {
            Ok(version @ WIDE..=VERSION) => version,
            Ok(version) if (VERSION..=LAST_VERSION).contains(&version) => {
                return Err(StateError::Version(version));
            }
            Ok(_) | Err(_) => return Err(StateError::Foreign),
        };
        let count = usize::from(input.byte()?);
        if !(1..=MAX_LIMITS).contains(&count) {
            return Err(StateError::Damaged("its number of limits is not 1 to 8"));
        }
        let mut limits = Vec::with_capacity(count);
        let mut states = States::with_capacity(count);
        for _ in 0..count {
            let (limit, state) = input.limit(version == WIDE)?;
            limits.push(limit);
            states.push(state);
        }
        if !input.0.is_empty() {
            return Err(StateError::Damaged("it goes on after its end"));
        }
        let policy =
            Policy::try_from(limits).map_err(|_| StateError::Damaged("it has no limits"))?;
        Ok(Self { policy, states })
    }
}

/// What a limit begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Which algorithm, and which form of its parameters.
    pub(crate) code: u8,
    flags: u8,
    /// `N`.
    pub(crate) limit: u32,
    /// Whether the rest of a TAT always takes four bytes, as in version 1.
    pub(crate) wide: bool,
}

impl Head {
    pub(crate) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends numbers, little-endian.
pub(crate) struct Writer(Vec<u8>);

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
pub(crate) struct Reader<'a>(&'a [u8]);

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

    fn limit(&mut self, wide: bool) -> Result<(Limit, State), StateError> {
        let first = self.byte()?;
        let (code, flags) = (first & !FLAGS, first & FLAGS);
        let known = Limit::flags(code);
        let known = known.ok_or(StateError::Damaged("a limit is of no known algorithm"))?;
        if flags & !known != 0 {
            return Err(StateError::Damaged("a limit has an unknown flag"));
        }
        let head = Head { code, flags, limit: self.u32()?, wide };
        Limit::decode(head, self)
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
