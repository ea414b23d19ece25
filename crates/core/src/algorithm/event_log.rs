//! The events of a key, with running totals: the state of a sliding log.
//!
//! Each event keeps the total up to and including itself, so the units in any stretch of the log are a difference
//! of two numbers, and a decision is a few binary searches, however long the log is.

use std::ops::ControlFlow;

use super::events::{Events, StoredEvent};
use crate::bytes::{MAX_TIME, Reader, StateError, Writer};

/// Bytes of the byte form between the number of events and the first event.
const HEAD: usize = 9;
/// More than any log has: its limit, migrated units, and one charge.
const MAX_TOTAL: u64 = 1 << 53;

/// Number of events that a check reads.
#[cfg(debug_assertions)]
const CHECKED: usize = 64;

/// Units at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogEvent {
    /// Microseconds since the Unix epoch.
    pub(super) time: u64,
    /// Units, at least 1.
    pub(super) weight: u64,
}

/// State of a key: its events, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog {
    /// The running total before the oldest event.
    base: u64,
    log: Events,
}

impl EventLog {
    /// Checks the order of the events, and their running totals; of a long log, only of the first and the last ones.
    #[cfg(debug_assertions)]
    pub(super) fn check(&self) {
        let len = self.log.len();
        assert_eq!(len == 0, self.log.is_empty(), "two ways to be empty");
        let (mut time, mut total, mut count) = (0, self.base, 0);
        for event in self.log.iter().take(CHECKED) {
            assert!(event.time >= time, "the times of a log go down");
            assert!(event.total > total, "an event of no units");
            (time, total, count) = (event.time, event.total, count + 1);
        }
        assert_eq!(count, len.min(CHECKED), "the length is not that of the events");
        if len <= CHECKED {
            assert_eq!(total - self.base, self.total(), "the sum is not that of the events");
        } else if let (Some(before), Some(last)) = (self.log.get(len - 2), self.log.back()) {
            assert!(before.time <= last.time && before.total < last.total, "the last are unsorted");
        }
    }

    /// Units later than `edge`, one event after the other; `None` for a long log.
    #[cfg(debug_assertions)]
    pub(super) fn sum_after(&self, edge: Option<u64>) -> Option<u64> {
        let is_live = |event: &LogEvent| edge.is_none_or(|edge| event.time > edge);
        (self.log.len() <= CHECKED)
            .then(|| self.events().filter(is_live).map(|event| event.weight).sum())
    }

    /// A log of these events; `None` if their times go down, a weight is zero, or the sum is more than any log has.
    pub(super) fn from_events(events: impl Iterator<Item = LogEvent>) -> Option<Self> {
        let mut state = Self::default();
        for LogEvent { time, weight } in events {
            if weight == 0
                || weight > MAX_TOTAL
                || state.log.back().is_some_and(|last| last.time > time)
            {
                return None;
            }
            state.push(time, weight);
            if state.total() > MAX_TOTAL {
                return None;
            }
        }
        Some(state)
    }

    /// Takes as much memory as a copy would.
    fn without_spare_capacity(mut self) -> Self {
        self.log.shrink();
        self
    }

    /// Drops events that are as old as `period` when the newest one comes: they have expired, whatever the clock
    /// does.
    pub(super) fn drop_gone(&mut self, period: u64) {
        let edge = self.log.back().and_then(|newest| newest.time.checked_sub(period));
        self.drop_first(self.first_after(edge));
    }

    /// A copy that shares the events, so that it costs no more than that of a short log.
    pub(super) fn share(&mut self) -> Self {
        self.log.share();
        Self { base: self.base, log: self.log.copy() }
    }

    /// Address of the oldest event: copies that share it have the same.
    #[cfg(test)]
    pub(crate) fn oldest(&self) -> Option<*const ()> {
        self.log.front().map(|event| std::ptr::from_ref(event).cast())
    }

    /// Number of events.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    /// All events that are kept, oldest first.
    pub(super) fn events(&self) -> impl Iterator<Item = LogEvent> {
        let mut before = self.base;
        self.log.iter().map(move |&StoredEvent { time, total }| {
            let weight = total - before;
            before = total;
            LogEvent { time, weight }
        })
    }

    /// Whether every event is of one unit.
    pub(super) fn is_all_ones(&self) -> bool {
        self.total() == self.log.len() as u64
    }

    /// Appends the events as offsets from the first, in as few bytes as the greatest needs.
    pub(super) fn encode(&self, out: &mut Writer) {
        let (offset_width, weight_width) = self.widths();
        let first = self.bounds().map_or(0, |(first, _)| first);
        out.uint(self.log.len() as u64, 4);
        out.uint(first, 7);
        out.uint(offset_width as u64, 1);
        out.uint(weight_width as u64, 1);
        out.reserve(self.log.len() * (offset_width + weight_width));
        for LogEvent { time, weight } in self.events() {
            out.uint(time - first, offset_width);
            out.uint(weight, weight_width);
        }
    }

    /// Bytes of that, the number of events aside.
    pub(super) fn encoded_len(&self) -> usize {
        let (offset, weight) = self.widths();
        HEAD + self.log.len() * (offset + weight)
    }

    pub(super) fn heap_size(&self) -> usize {
        self.log.heap_size()
    }

    /// Bytes of the offset and of the weight of each event.
    pub(super) fn widths(&self) -> (usize, usize) {
        let (first, last) = self.bounds().unwrap_or_default();
        // Events that all weigh 1, as nearly all do, need no weight, and no search for the greatest.
        let weight = if self.is_all_ones() {
            0
        } else {
            width(self.events().map(|event| event.weight).max().unwrap_or(1))
        };
        (width(last - first).max(1), weight)
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Option<Self>, StateError> {
        let count = usize::try_from(input.u32()?)
            .map_err(|_| StateError::Damaged("a log is longer than memory"))?;
        if count == 0 {
            return Ok(None);
        }
        let first = input.time()?;
        let (offset_width, weight_width) = (usize::from(input.byte()?), usize::from(input.byte()?));
        if !(1..=7).contains(&offset_width) || weight_width > 7 {
            return Err(StateError::Damaged("the width of an event is out of bounds"));
        }
        let size = count.checked_mul(offset_width + weight_width);
        let mut events = input.part(size.unwrap_or(usize::MAX))?;
        let events = (0..count).map_while(|_| {
            let time = first + events.uint(offset_width).ok()?;
            let weight = if weight_width == 0 { 1 } else { events.uint(weight_width).ok()? };
            (time <= MAX_TIME).then_some(LogEvent { time, weight })
        });
        let log = Self::from_events(events).filter(|log| log.log.len() == count);
        log.map(Self::without_spare_capacity)
            .map(Some)
            .ok_or(StateError::Damaged("the events of a log are out of order or out of bounds"))
    }

    /// The times of the oldest and the newest event.
    pub(super) fn bounds(&self) -> Option<(u64, u64)> {
        Some((self.log.front()?.time, self.log.back()?.time))
    }

    /// Units in the whole log.
    pub(super) fn total(&self) -> u64 {
        self.log.back().map_or(0, |last| last.total - self.base)
    }

    /// Units from the event at `first` on.
    pub(super) fn sum_from(&self, first: usize) -> u64 {
        self.total() - self.before(first)
    }

    /// Units before the event at `index`.
    pub(super) fn before(&self, index: usize) -> u64 {
        index.checked_sub(1).and_then(|last| self.log.get(last)).map_or(0, |e| e.total - self.base)
    }

    /// Events before the one with which the sum reaches `units`.
    pub(super) fn events_below(&self, units: u64) -> usize {
        self.log.partition_point(|event| event.total - self.base < units)
    }

    /// Events that sum to at most `units`, from the oldest.
    pub(super) fn events_within(&self, units: u64) -> usize {
        self.log.partition_point(|event| event.total - self.base <= units)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.log.is_empty()
    }

    /// Time of the newest event.
    pub(super) fn newest(&self) -> Option<u64> {
        self.log.back().map(|event| event.time)
    }

    /// Time of the event at `index`, 0 if there is none.
    pub(super) fn time(&self, index: usize) -> u64 {
        self.log.get(index).map_or(0, |event| event.time)
    }

    /// The index of the first event later than `edge`; none is too old where there is no edge.
    pub(super) fn first_after(&self, edge: Option<u64>) -> usize {
        edge.map_or(0, |edge| self.log.partition_point(|event| event.time <= edge))
    }

    pub(super) fn drop_first(&mut self, count: usize) {
        debug_assert!(count <= self.log.len());
        #[cfg(debug_assertions)]
        let rest = self.sum_from(count);
        self.base += self.before(count);
        self.log.drop_first(count);
        #[cfg(debug_assertions)]
        assert_eq!(self.total(), rest, "events that are not dropped are lost");
    }

    /// Removes `units` from the newest events. The log has at least as many.
    pub(super) fn drop_newest(&mut self, units: u64) {
        let kept = self.total() - units;
        while !self.log.is_empty() && self.before(self.log.len() - 1) >= kept {
            self.log.pop();
        }
        let total = self.base + kept;
        if self.log.back().is_some_and(|last| last.total != total) {
            self.log.change_newest(|last| {
                last.total = total;
                ControlFlow::Break(())
            });
        }
        debug_assert_eq!(self.total(), kept, "units are lost beside the newest");
    }

    pub(super) fn push(&mut self, time: u64, weight: u64) {
        debug_assert!(self.newest().is_none_or(|newest| newest <= time), "an event comes too late");
        debug_assert!(weight > 0, "an event of no units");
        if self.base > MAX_TOTAL {
            let base = std::mem::take(&mut self.base);
            self.log.change_newest(|event| {
                event.total -= base;
                ControlFlow::Continue(())
            });
        }
        let total = self.base + self.total();
        self.log.push(StoredEvent { time, total: total + weight.min(MAX_TOTAL) });
    }

    /// Takes times later than `now` as `now`.
    pub(super) fn clamp_times(&mut self, now: u64) {
        if self.log.back().is_none_or(|newest| newest.time <= now) {
            return;
        }
        self.log.change_newest(|event| {
            if event.time <= now {
                return ControlFlow::Break(());
            }
            event.time = now;
            ControlFlow::Continue(())
        });
    }
}

/// Bytes that hold `value`.
const fn width(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()).div_ceil(8) as usize
}

/// Logs are equal if their events are; the start of the running totals does not matter.
impl PartialEq for EventLog {
    fn eq(&self, other: &Self) -> bool {
        self.events().eq(other.events())
    }
}

impl Eq for EventLog {}
