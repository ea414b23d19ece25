//! The ledger of a key: its open holds.
//!
//! It is kept as the bytes that are stored, one record a hold, in the order in which the holds were opened:
//!
//! ```text
//! | 1: length of the id, 1 to 64; 0x80 if metered | 4: units | 7: expires, µs since the epoch | the id |
//! ```
//!
//! Invariants: no two holds have the same id; no hold has 0 units; at most [`MAX_HOLDS`] are open; the sums and times
//! beside the records are those of the records.

use std::time::Duration;

use crate::{
    bytes::{MAX_TIME, Reader, StateError, Writer},
    time::Timestamp,
};

/// The most holds of a key that may be open.
pub const MAX_HOLDS: usize = 65_536;
/// The longest id of a hold, in bytes.
pub const MAX_HOLD_ID: usize = 64;

/// Bytes of a record in front of the id.
const HEAD: usize = 12;
/// Set in the first byte of a record of a metered hold.
const METERED: u8 = 0x80;

/// An open hold of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold<'a> {
    /// Its id: 1 to 64 bytes.
    pub id: &'a [u8],
    /// Units that it holds, at least 1.
    pub units: u32,
    /// The time from which it is no longer open, in microseconds since the Unix epoch.
    pub(crate) expires: u64,
    /// Whether it was opened under a policy with a limit other than `concurrency`.
    pub(crate) metered: bool,
}

impl Hold<'_> {
    /// How long the hold stays open from `now` on, unless it is settled or renewed.
    #[must_use]
    pub const fn expires_after(&self, now: Timestamp) -> Duration {
        Duration::from_micros(self.expires.saturating_sub(now.as_micros()))
    }
}

/// The open holds of a key; never empty where an entry has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ledger {
    records: Vec<u8>,
    count: usize,
    /// Units of all holds.
    held: u64,
    /// Units of the metered ones.
    metered: u64,
    first_expiry: u64,
    last_expiry: u64,
    /// When the hold that was opened last expires, and whether the others are known to expire in the order in which they
    /// were opened, not after it: then nothing has to be sorted.
    newest_expiry: u64,
    is_unsorted: bool,
}

impl Ledger {
    /// Number of open holds.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Units of all holds, or of the metered ones.
    pub(crate) const fn held(&self, only_metered: bool) -> u64 {
        if only_metered { self.metered } else { self.held }
    }

    /// When the last hold has expired.
    pub(crate) const fn last_expiry(&self) -> u64 {
        self.last_expiry
    }

    /// Whether a hold has expired at `now`.
    pub(crate) const fn has_expired(&self, now: Timestamp) -> bool {
        self.count > 0 && self.first_expiry <= now.as_micros()
    }

    /// The holds in the order in which they were opened.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Hold<'_>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let hold = self.at(at)?;
            at += HEAD + hold.id.len();
            Some(hold)
        })
    }

    /// The holds in the order in which they expire; of equals, the first opened is the first.
    pub(crate) fn by_expiry(&self) -> Vec<Hold<'_>> {
        let mut holds: Vec<_> = self.iter().collect();
        if self.is_unsorted {
            // Stable.
            holds.sort_by_key(|hold| hold.expires);
        }
        holds
    }

    /// Calls `each` with the time at which each metered hold expires, and its units, in that order.
    #[inline]
    pub(crate) fn for_each_metered(&self, mut each: impl FnMut(u64, u32)) {
        if self.is_unsorted {
            let holds = self.by_expiry().into_iter();
            return holds.filter(|it| it.metered).for_each(|it| each(it.expires, it.units));
        }
        self.iter().filter(|it| it.metered).for_each(|it| each(it.expires, it.units));
    }

    /// Where the record of the hold of that id begins.
    #[inline]
    pub(crate) fn find(&self, id: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&head) = self.records.get(at) {
            let (start, len) = (at + HEAD, usize::from(head & !METERED));
            if len == id.len() && self.records.get(start..start + len) == Some(id) {
                return Some(at);
            }
            at = start + len;
        }
        None
    }

    /// The hold of that id.
    pub(crate) fn get(&self, id: &[u8]) -> Option<Hold<'_>> {
        self.at(self.find(id)?)
    }

    /// Adds a hold, whose id is not open.
    pub(crate) fn push(&mut self, hold: &Hold<'_>) {
        let len = HEAD + hold.id.len();
        if self.records.capacity() - self.records.len() < len {
            // Doubling would leave half of the memory unused.
            self.records.reserve_exact(len + self.records.len() / 8);
        }
        let id_len = u8::try_from(hold.id.len()).unwrap_or(u8::MAX);
        self.records.push(id_len | if hold.metered { METERED } else { 0 });
        self.records.extend_from_slice(&hold.units.to_le_bytes());
        self.records.extend_from_slice(&hold.expires.to_le_bytes()[..7]);
        self.records.extend_from_slice(hold.id);
        self.count(hold);
    }

    /// Removes the hold whose record begins at `at`. Returns its units, and whether it was metered.
    pub(crate) fn remove(&mut self, at: usize) -> Option<(u32, bool)> {
        let Hold { id, units, expires, metered } = self.at(at)?;
        let end = at + HEAD + id.len();
        let is_newest = end == self.records.len();
        self.records.drain(at..end);
        self.records.shrink_to(self.records.len() * 2 + 64);
        self.count -= 1;
        self.held -= u64::from(units);
        self.metered -= if metered { u64::from(units) } else { 0 };
        if is_newest || expires == self.first_expiry || expires == self.last_expiry {
            self.count_times();
        }
        Some((units, metered))
    }

    /// Sets when the hold expires whose record begins at `at`.
    pub(crate) fn set_expires(&mut self, at: usize, expires: u64) {
        if let Some(field) = self.records.get_mut(at + 5..at + HEAD) {
            field.copy_from_slice(&expires.to_le_bytes()[..7]);
        }
        self.count_times();
    }

    /// Removes the holds that have expired at `now`, and returns the metered ones, as their units and the time at which
    /// they expired, in the order in which they did.
    pub(crate) fn remove_expired(&mut self, now: Timestamp) -> Vec<(u64, u32)> {
        let is_open = |hold: &Hold<'_>| hold.expires > now.as_micros();
        let mut open = Self::default();
        let mut expired = Vec::new();
        for hold in self.iter() {
            if is_open(&hold) {
                open.push(&hold);
            } else if hold.metered {
                expired.push((hold.expires, hold.units));
            }
        }
        expired.sort_by_key(|&(expires, _)| expires);
        *self = open;
        expired
    }

    /// Bytes that it keeps elsewhere.
    pub(crate) const fn heap_size(&self) -> usize {
        self.records.capacity()
    }

    /// Number of bytes that [`encode`](Self::encode) appends.
    pub(crate) const fn encoded_len(&self) -> usize {
        4 + self.records.len()
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.uint(self.count as u64, 4);
        out.bytes(&self.records);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, StateError> {
        let count = input.u32()? as usize;
        if !(1..=MAX_HOLDS).contains(&count) {
            return Err(StateError::Damaged("its number of holds is not 1 to 65536"));
        }
        let mut ledger = Self::default();
        let records = input.0;
        for _ in 0..count {
            let head = input.byte()?;
            let units = input.u32()?;
            let expires = input.uint(7)?;
            let id = input.take(usize::from(head & !METERED))?;
            if id.is_empty() || id.len() > MAX_HOLD_ID || units == 0 || expires > MAX_TIME {
                return Err(StateError::Damaged("a hold has a value outside its domain"));
            }
            ledger.count(&Hold { id, units, expires, metered: head & METERED != 0 });
        }
        ledger.records = records[..records.len() - input.0.len()].to_vec();
        Ok(ledger)
    }

    /// The hold whose record begins at `at`.
    fn at(&self, at: usize) -> Option<Hold<'_>> {
        let record = self.records.get(at..).filter(|record| record.len() > HEAD)?;
        let (head, rest) = record.split_at(HEAD);
        let mut expires = [0; 8];
        expires[..7].copy_from_slice(&head[5..]);
        Some(Hold {
            id: rest.get(..usize::from(head[0] & !METERED))?,
            units: u32::from_le_bytes([head[1], head[2], head[3], head[4]]),
            expires: u64::from_le_bytes(expires),
            metered: head[0] & METERED != 0,
        })
    }

    /// Counts a hold that was added.
    fn count(&mut self, hold: &Hold<'_>) {
        let units = u64::from(hold.units);
        self.count_time(self.count == 0, hold.expires);
        self.count += 1;
        self.held += units;
        self.metered += if hold.metered { units } else { 0 };
    }

    fn count_time(&mut self, is_first: bool, expires: u64) {
        if is_first {
            (self.first_expiry, self.last_expiry) = (expires, expires);
            self.is_unsorted = false;
        } else {
            self.is_unsorted |= expires < self.newest_expiry;
            self.first_expiry = self.first_expiry.min(expires);
            self.last_expiry = self.last_expiry.max(expires);
        }
        self.newest_expiry = expires;
    }

    /// Counts the times of all holds again.
    fn count_times(&mut self) {
        let mut at = 0;
        while let Some(Hold { id, expires, .. }) = self.at(at) {
            let next = at + HEAD + id.len();
            self.count_time(at == 0, expires);
            at = next;
        }
    }
}
