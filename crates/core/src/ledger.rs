//! The ledger of a key: its open holds.
//!
//! It is kept as the bytes that are stored, one record a hold, in the order in which the holds expire; among equals, the
//! one that was opened first comes first, which is the one with the lowest number:
//!
//! ```text
//! | 1: length of the id, 1 to 64; 0x80 if metered | 4: units | 7: expires, µs since the epoch | 6: number | the id |
//! ```
//!
//! Invariants: no two holds have the same id or the same number; no hold has 0 units; at most [`MAX_HOLDS`] are open; the
//! holds are in their order; the sums and times beside the records are those of the records.

use std::{sync::OnceLock, time::Duration};

use smallvec::SmallVec;

use crate::{
    bytes::{MAX_TIME, Reader, StateError, Writer},
    drain::{Drain, DrainRate},
    reached,
    time::Timestamp,
};

/// Maximum number of open holds of a key.
pub const MAX_HOLDS: usize = 65_536;
/// The longest id of a hold, in bytes.
pub const MAX_HOLD_ID: usize = 64;

/// Number of open holds up to which a check repeats a decision.
#[cfg(debug_assertions)]
pub(crate) const FEW_HOLDS: usize = 8;
/// Number of open holds up to which a check reads all of them.
#[cfg(debug_assertions)]
pub(crate) const SOME_HOLDS: usize = 64;

/// Bytes of a record in front of the id.
const HEAD: usize = 18;
/// Set in the first byte of a record of a metered hold.
const METERED: u8 = 0x80;

/// The positions of the record of a hold, and of the one before it.
#[derive(Clone, Copy)]
pub(crate) struct RecordPosition {
    at: usize,
    before: usize,
}

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
    /// Its number: the later a hold is opened, the higher. A renewed hold keeps its own.
    number: u64,
}

impl Hold<'_> {
    /// How long the hold stays open from `now` on, unless it is settled or renewed.
    #[must_use]
    pub const fn expires_after(&self, now: Timestamp) -> Duration {
        Duration::from_micros(self.expires.saturating_sub(now.as_micros()))
    }

    /// The bytes of its record in front of the id.
    // Written as it is read, in two words of eight bytes and one of two, so that a read does not wait for the write.
    fn head(&self) -> [u8; HEAD] {
        let id_len = self.id.len() as u64 | if self.metered { u64::from(METERED) } else { 0 };
        let low = id_len | u64::from(self.units) << 8 | self.expires << 40;
        let middle = self.expires >> 24 | self.number << 32;
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&low.to_le_bytes());
        head[8..16].copy_from_slice(&middle.to_le_bytes());
        head[16..].copy_from_slice(&(self.number >> 32).to_le_bytes()[..2]);
        head
    }

    /// What the ledger is ordered by.
    const fn order(&self) -> (u64, u64) {
        (self.expires, self.number)
    }
}

/// When a hold expires, and the units that are then charged, if it is metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    /// Microseconds since the Unix epoch.
    pub(crate) at: u64,
    /// At least 1.
    pub(crate) units: u32,
}

impl Expiry {
    pub(crate) fn time(self) -> Timestamp {
        Timestamp::ahead(self.at)
    }
}

/// Expiries in their order; most keys have few holds.
pub(crate) type Expiries = SmallVec<[Expiry; 4]>;

/// The open holds of a key; never empty in an entry, unless the entry is [idle](crate::Entry::is_idle).
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    records: Vec<u8>,
    count: usize,
    /// The number of the next hold that is opened, unless it is the only one.
    next_number: u64,
    /// Units of all holds.
    held: u64,
    /// Units of the metered ones.
    metered: u64,
    first_expiry: u64,
    last_expiry: u64,
    /// The length of each record, while all are of one length; otherwise 0. The position of a record then does not
    /// depend on the record before it.
    stride: usize,
    /// The debt of the metered holds, once it is needed.
    drain: OnceLock<Drain>,
}

/// The rest follows from the records, or decides nothing.
impl PartialEq for Ledger {
    fn eq(&self, other: &Self) -> bool {
        self.records == other.records
    }
}

impl Eq for Ledger {}

impl Ledger {
    /// Checks what is kept beside the records.
    #[cfg(debug_assertions)]
    pub(crate) fn check(&self) {
        let bytes = self.count * (HEAD + 1)..=self.count * (HEAD + MAX_HOLD_ID);
        assert!(bytes.contains(&self.records.len()), "{} holds in {bytes:?}", self.count);
        assert!(self.metered <= self.held, "more is metered than held");
        if self.count > SOME_HOLDS {
            return;
        }
        let holds: SmallVec<[_; 8]> = self.iter().collect();
        assert_eq!(holds.len(), self.count, "a hold is counted that has no record");
        let units = |hold: &Hold<'_>| u64::from(hold.units);
        assert_eq!(holds.iter().map(units).sum::<u64>(), self.held, "units held");
        let metered = holds.iter().filter(|hold| hold.metered);
        assert_eq!(metered.map(units).sum::<u64>(), self.metered, "units of metered holds");
        let is_in_order = |pair: &[Hold<'_>]| pair[0].order() < pair[1].order();
        assert!(holds.windows(2).all(is_in_order), "holds expire in another order");
        assert!(holds.iter().all(|hold| hold.number < self.next_number), "a number comes again");
        let expiries = || holds.iter().map(|hold| hold.expires);
        assert_eq!(self.first_expiry, expiries().next().unwrap_or(0), "the first to expire");
        assert_eq!(self.last_expiry, expiries().next_back().unwrap_or(0), "the last to expire");
        let is_of_stride = |hold: &Hold<'_>| HEAD + hold.id.len() == self.stride;
        assert!(self.stride == 0 || holds.iter().all(is_of_stride), "a record of another length");
        if let Some(drain) = self.drain.get().filter(|_| self.metered > 0)
            && let Some(computed) = self.drain_at(drain.rate())
        {
            let first = self.first_expiry;
            assert_eq!(drain.owed(first), computed.owed(first), "the debt of the metered holds");
        }
    }

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

    /// The holds in the order in which they expire.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Hold<'_>> {
        let mut records = &self.records[..];
        std::iter::from_fn(move || {
            let (hold, rest) = first(records)?;
            records = rest;
            Some(hold)
        })
    }

    /// The expiries of all holds, or of the metered ones, in their order.
    pub(crate) fn expiries(&self, only_metered: bool) -> Expiries {
        let mut expiries = Expiries::with_capacity(self.count);
        self.for_each(only_metered, |expiry| expiries.push(expiry));
        expiries
    }

    /// The debt at `now` of the metered holds alone under a limit that pays back at `rate`, in ticks from `now` on;
    /// `None` if that does not fit in 64 bits.
    #[inline]
    pub(crate) fn owed(&self, rate: DrainRate, now: Timestamp) -> Option<u64> {
        if self.metered == 0 {
            return Some(0);
        }
        let drain = match self.drain.get() {
            Some(drain) => Some(drain).filter(|it| it.is_of(rate)),
            None => {
                let drain = self.drain_at(rate)?;
                Some(self.drain.get_or_init(|| drain))
            }
        };
        match drain {
            Some(drain) => drain.owed(now.as_micros()),
            None => self.drain_at(rate)?.owed(now.as_micros()),
        }
    }

    /// Keeps what [`owed`](Self::owed) needs, as far as holds come and go at the end.
    pub(crate) fn keep_drain(&mut self, rate: DrainRate) {
        if !self.drain.get().is_some_and(|drain| drain.is_of(rate)) {
            self.drain = self.drain_at(rate).map(OnceLock::from).unwrap_or_default();
        }
    }

    /// Changes the debt, if it is known. It is forgotten if `change` cannot compute it.
    fn change_drain(&mut self, change: impl FnOnce(&mut Drain) -> Option<()>) {
        if self.drain.get_mut().is_some_and(|drain| change(drain).is_none()) {
            self.drain.take();
        }
    }

    fn drain_at(&self, rate: DrainRate) -> Option<Drain> {
        let mut drain = Drain::new(rate, [self.first_expiry, self.last_expiry], self.metered)?;
        self.for_each(true, |it| _ = drain.add(it.at, it.units));
        Some(drain)
    }

    /// Calls `each` with the expiry of all holds, or of the metered ones, in their order.
    #[inline]
    fn for_each(&self, only_metered: bool, mut each: impl FnMut(Expiry)) {
        let mut rest = &self.records[..];
        while let Some((hold, behind)) = self.first(rest) {
            if hold.metered || !only_metered {
                each(Expiry { at: hold.expires, units: hold.units });
            }
            rest = behind;
        }
    }

    /// Where the record of the hold of that id is.
    #[inline]
    pub(crate) fn find(&self, id: &[u8]) -> Option<RecordPosition> {
        let (last, size) = (id.last()?, HEAD + id.len());
        let (mut at, mut before) = (0, 0);
        let mut rest = &self.records[..];
        if self.stride == 0 {
            while let Some((hold, behind)) = first(rest) {
                if hold.id == id {
                    return Some(RecordPosition { at, before });
                }
                (before, at) = (at, self.records.len() - behind.len());
                rest = behind;
            }
            return None;
        }
        // The last bytes differ mostly, and the comparison of all is a call.
        let is_found = |record: &[u8]| record.last() == Some(last) && record[HEAD..] == *id;
        let (older, newest) = rest.split_at_checked(rest.len().checked_sub(size)?)?;
        // The settle of the last one of nested holds, or of the only short one.
        if self.stride == size && is_found(newest) {
            return Some(RecordPosition {
                at: older.len(),
                before: older.len().saturating_sub(size),
            });
        }
        while self.stride == size
            && let Some((record, behind)) = rest.split_at_checked(size)
        {
            if is_found(record) {
                return Some(RecordPosition { at, before });
            }
            (before, at) = (at, at + size);
            rest = behind;
        }
        None
    }

    /// The hold of that id.
    pub(crate) fn get(&self, id: &[u8]) -> Option<Hold<'_>> {
        self.at(self.find(id)?.at)
    }

    /// Adds a hold, whose id is not open.
    pub(crate) fn open(&mut self, id: &[u8], units: u32, expires: u64, metered: bool) {
        let number = if self.is_empty() { 0 } else { self.next_number };
        self.next_number = number + 1;
        self.insert(&Hold { id, units, expires, metered, number });
    }

    /// Adds a hold at its place.
    fn insert(&mut self, hold: &Hold<'_>) {
        debug_assert!(hold.units > 0 && (1..=MAX_HOLD_ID).contains(&hold.id.len()));
        let len = HEAD + hold.id.len();
        if self.records.capacity() - self.records.len() < len {
            // Doubling would leave half of the memory unused.
            self.records.reserve_exact(len + self.records.len() / 8);
        }
        // Most holds of a key have one lifetime, so that the newest expires last.
        let is_newest = hold.number + 1 == self.next_number;
        let is_last =
            hold.expires > self.last_expiry || is_newest && hold.expires == self.last_expiry;
        let at = if is_last { self.records.len() } else { self.end_before(hold) };
        self.records.extend_from_slice(&hold.head());
        self.records.extend_from_slice(hold.id);
        if !is_last {
            reached!(HoldsExpireInAnotherOrder);
            self.records[at..].rotate_right(len);
        }
        self.count(hold);
        if hold.metered {
            let change = |drain: &mut Drain| drain.add(hold.expires, hold.units);
            self.change_drain(|drain| if is_last { change(drain) } else { None });
        }
    }

    /// The position behind the records of the holds that come before `hold`.
    fn end_before(&self, hold: &Hold<'_>) -> usize {
        let is_before = |other: &Hold<'_>| other.order() < hold.order();
        if self.stride == 0 {
            let before = self.iter().take_while(is_before);
            return before.map(|hold| HEAD + hold.id.len()).sum();
        }
        let (mut from, mut to) = (0, self.count);
        while from < to {
            let middle = from.midpoint(to);
            if self.at(middle * self.stride).is_some_and(|hold| is_before(&hold)) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from * self.stride
    }

    /// Removes the hold at `place`. Returns its units, and whether it was metered.
    pub(crate) fn remove(&mut self, place: RecordPosition) -> Option<(u32, bool)> {
        let at = place.at;
        let Hold { id, units, metered, .. } = self.at(at)?;
        let end = at + HEAD + id.len();
        let is_last = end == self.records.len();
        self.records.drain(at..end);
        self.shrink();
        self.count -= 1;
        self.held -= u64::from(units);
        self.metered -= if metered { u64::from(units) } else { 0 };
        if metered {
            self.change_drain(|drain| if is_last { drain.remove_last() } else { None });
        }
        if is_last {
            self.last_expiry = self.at(place.before).map_or(0, |hold| hold.expires);
        }
        if at == 0 {
            self.first_expiry = self.at(0).map_or(0, |hold| hold.expires);
        }
        Some((units, metered))
    }

    /// Sets when the hold at `place` expires.
    pub(crate) fn set_expires(&mut self, place: RecordPosition, expires: u64) {
        let id = self.at(place.at).map(|hold| SmallVec::<[u8; MAX_HOLD_ID]>::from_slice(hold.id));
        let number = self.at(place.at).map_or(0, |hold| hold.number);
        let (Some(id), Some((units, metered))) = (id, self.remove(place)) else { return };
        self.insert(&Hold { id: &id, units, expires, metered, number });
    }

    /// Removes the holds that have expired at `now`, and returns the expiries of the metered ones, in their order. Only
    /// those that have expired are read.
    pub(crate) fn remove_expired(&mut self, now: Timestamp) -> Expiries {
        let mut expired = Expiries::new();
        let mut rest = &self.records[..];
        while let Some((hold, behind)) = self.first(rest)
            && hold.expires <= now.as_micros()
        {
            let units = u64::from(hold.units);
            self.count -= 1;
            self.held -= units;
            if hold.metered {
                self.metered -= units;
                expired.push(Expiry { at: hold.expires, units: hold.units });
            }
            rest = behind;
        }
        let ended = self.records.len() - rest.len();
        self.first_expiry = first(rest).map_or(0, |(hold, _)| hold.expires);
        self.records.drain(..ended);
        self.shrink();
        if !expired.is_empty() {
            self.drain.take();
        }
        debug_assert!(!self.has_expired(now), "a hold that has expired stays open");
        if self.is_empty() {
            debug_assert!((self.held, self.records.len()) == (0, 0), "units stay held by no hold");
            *self = Self::default();
        }
        expired
    }

    /// Frees memory that few holds do not need.
    fn shrink(&mut self) {
        if self.records.capacity() > self.records.len() * 2 + 64 {
            self.records.shrink_to(self.records.len() * 2 + 64);
        }
    }

    /// Bytes that it keeps elsewhere.
    pub(crate) const fn heap_size(&self) -> usize {
        self.records.capacity()
    }

    /// Number of bytes that [`encode`](Self::encode) appends.
    pub(crate) const fn encoded_len(&self) -> usize {
        4 + 6 + self.records.len()
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.uint(self.count as u64, 4);
        out.uint(self.next_number, 6);
        out.bytes(&self.records);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, StateError> {
        let count = input.u32()? as usize;
        if !(1..=MAX_HOLDS).contains(&count) {
            return Err(StateError::Damaged("its number of holds is not 1 to 65536"));
        }
        let mut ledger = Self { next_number: input.uint(6)?, ..Self::default() };
        let records = input.0;
        let mut last = None;
        for _ in 0..count {
            let head = input.byte()?;
            let units = input.u32()?;
            let expires = input.uint(7)?;
            let number = input.uint(6)?;
            let id = input.take(usize::from(head & !METERED))?;
            let is_number = number < ledger.next_number;
            if id.is_empty()
                || id.len() > MAX_HOLD_ID
                || units == 0
                || expires > MAX_TIME
                || !is_number
            {
                return Err(StateError::Damaged("a hold has a value outside its domain"));
            }
            let hold = Hold { id, units, expires, metered: head & METERED != 0, number };
            if last.replace(hold.order()) >= Some(hold.order()) {
                return Err(StateError::Damaged("its holds are not in the order of their expiry"));
            }
            ledger.count(&hold);
        }
        ledger.records = records[..records.len() - input.0.len()].to_vec();
        Ok(ledger)
    }

    /// The hold whose record begins at `at`.
    fn at(&self, at: usize) -> Option<Hold<'_>> {
        first(self.records.get(at..)?).map(|(hold, _)| hold)
    }

    /// The first hold of some last records, and the records behind it.
    #[inline]
    fn first<'a>(&self, records: &'a [u8]) -> Option<(Hold<'a>, &'a [u8])> {
        if self.stride == 0 {
            return first(records);
        }
        let (record, behind) = records.split_at_checked(self.stride)?;
        let (head, id) = record.split_first_chunk()?;
        Some((hold(head, id), behind))
    }

    /// Counts a hold that was added.
    fn count(&mut self, hold: &Hold<'_>) {
        let (units, len) = (u64::from(hold.units), HEAD + hold.id.len());
        let is_first = self.is_empty();
        self.stride = if is_first || self.stride == len { len } else { 0 };
        self.first_expiry =
            if is_first { hold.expires } else { self.first_expiry.min(hold.expires) };
        self.last_expiry = if is_first { hold.expires } else { self.last_expiry.max(hold.expires) };
        self.count += 1;
        self.held += units;
        self.metered += if hold.metered { units } else { 0 };
    }
}

/// The first hold of `records`, and the records behind it.
#[inline]
fn first(records: &[u8]) -> Option<(Hold<'_>, &[u8])> {
    let (head, rest) = records.split_first_chunk()?;
    let (id, rest) = rest.split_at_checked(usize::from(head[0] & !METERED))?;
    Some((hold(head, id), rest))
}

/// The hold of a record with these bytes in front of its id.
#[inline]
fn hold<'a>(head: &[u8; HEAD], id: &'a [u8]) -> Hold<'a> {
    let [a, b, c, d, e, f, g, h, middle @ .., low_end, high_end] = *head;
    let (low, middle) = (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(middle));
    #[expect(clippy::cast_possible_truncation, reason = "bytes 1 to 4 of it")]
    let units = (low >> 8) as u32;
    let expires = low >> 40 | (middle & 0xffff_ffff) << 24;
    let number = middle >> 32 | u64::from(u16::from_le_bytes([low_end, high_end])) << 32;
    Hold { id, units, expires, metered: head[0] & METERED != 0, number }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(holds: impl IntoIterator<Item = (u32, u64)>) -> Ledger {
        let mut ledger = Ledger::default();
        for (units, expires) in holds {
            let (id, metered) = (format!("{units}"), units % 3 > 0);
            ledger.open(id.as_bytes(), units, expires, metered);
        }
        ledger
    }

    #[test]
    fn remove_expired_leaves_the_ledger_of_the_open_holds() {
        let at = |micros| Timestamp::saturating_from_micros(micros);
        let orders: [fn(u32) -> u64; 3] =
            [|it| u64::from(it / 2), |it| u64::from(it * 7 % 20), |it| u64::from(20 - it)];
        for order in orders {
            let holds = || (1..=20).map(|units| (units, order(units)));
            for now in 0..=21 {
                let mut found = ledger(holds());
                let expired = found.remove_expired(at(now));
                let open = ledger(holds().filter(|it| it.1 > now));
                let ids = |it: &Ledger| it.iter().map(|hold| hold.id.to_vec()).collect::<Vec<_>>();
                assert_eq!(ids(&found), ids(&open));
                let sums = |it: &Ledger| {
                    let times = (it.has_expired(at(now)), it.first_expiry, it.last_expiry());
                    (it.len(), it.held(false), it.held(true), times, it.expiries(false))
                };
                assert_eq!(sums(&found), sums(&open), "{now}");
                let mut charged: Vec<_> =
                    holds().filter(|it| it.1 <= now && it.0 % 3 > 0).collect();
                charged.sort_by_key(|it| it.1);
                let expected = charged.iter().map(|&(units, at)| Expiry { at, units });
                assert!(expired.into_iter().eq(expected), "{now}");
            }
        }
    }

    #[test]
    fn holds_stay_in_the_order_of_their_expiry() {
        let ids_of_one_length: [fn(u32) -> String; 2] =
            [|it| format!("{it}"), |it| format!("{it:03}")];
        for id in ids_of_one_length {
            let mut found = Ledger::default();
            let mut expected = Vec::new();
            for number in 1..200_u32 {
                let (id, expires) = (id(number), u64::from(number * 37 % 50));
                found.open(id.as_bytes(), 1, expires, true);
                expected.push((expires, number, id));
                if number % 3 == 0 {
                    let place = (number * 5) as usize % expected.len();
                    let (renewed, _, id) = &mut expected[place];
                    *renewed = u64::from(number * 11 % 60);
                    found.set_expires(found.find(id.as_bytes()).unwrap(), *renewed);
                }
                // Among equals, the one that was opened first comes first.
                expected.sort();
                let holds = found.iter().map(|it| (it.expires, String::from_utf8_lossy(it.id)));
                assert!(holds.eq(expected.iter().map(|it| (it.0, it.2.as_str().into()))));
                found.check();
            }
            let mut out = Writer(Vec::new());
            found.encode(&mut out);
            let read = Ledger::decode(&mut Reader(&out.0)).unwrap();
            assert_eq!((read.next_number, &read), (found.next_number, &found));
            // The expiry of the first, behind the count, the next number, its length and its units.
            out.0[4 + 6 + 1 + 4] = 100;
            let error = "its holds are not in the order of their expiry";
            assert_eq!(Ledger::decode(&mut Reader(&out.0)), Err(StateError::Damaged(error)));
        }
    }

    #[test]
    fn owed_after_changes_is_that_of_a_new_ledger() {
        let rate = DrainRate { ticks_per_unit: 7, ticks_per_micro: 3 };
        let mut found = Ledger::default();
        let mut seed = 1_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for number in 1..2_000_u32 {
            let ids: Vec<_> = found.iter().map(|hold| hold.id.to_vec()).collect();
            let place = |ledger: &Ledger, at: u64| {
                ids.get(usize::try_from(at).unwrap()).and_then(|id| ledger.find(id))
            };
            match (draw(4), place(&found, draw(12))) {
                (0, Some(place)) => _ = found.remove(place),
                (1, Some(place)) => found.set_expires(place, 100 + draw(50)),
                _ => {
                    let (id, metered) = (format!("{number}"), draw(3) > 0);
                    let expires = 100 + u64::from(number % 40) + draw(3);
                    found.open(id.as_bytes(), 1 + number % 5, expires, metered);
                }
            }
            if draw(2) == 0 {
                found.keep_drain(rate);
            }
            let mut fresh = Ledger::default();
            let holds = found.iter();
            holds.for_each(|it| fresh.open(it.id, it.units, it.expires, it.metered));
            let now = Timestamp::saturating_from_micros(90);
            assert_eq!(found.owed(rate, now), fresh.owed(rate, now));
            if found.metered > 0 {
                assert!(found.drain.get().is_some(), "it is computed once");
            }
            if found.len() > 30 {
                found.remove_expired(Timestamp::saturating_from_micros(125));
            }
        }
    }
}
