//! Some events at a time.

use sluicegate_core::Timestamp;

use crate::event::{Event, Kind};

/// Most events in a batch: few enough that what is kept of their keys stays in a fast cache, many
/// enough that what is done once a batch costs nothing.
pub(crate) const MOST: usize = 64;

/// Events that stand together in memory, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(crate) events: &'a [Stored],
    pub(crate) bytes: &'a [u8],
}

/// An event, its texts by their places.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) line: u64,
    pub(crate) time: Timestamp,
    pub(crate) cost: u32,
    pub(crate) kind: Kind,
    pub(crate) key: (usize, usize),
    pub(crate) policy: (usize, usize),
}

impl<'a> Batch<'a> {
    /// Whether there is none, which there is only at the end of a trace.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.events.len()
    }

    /// The events before `time` and the others; the events are in order of time.
    #[must_use]
    pub fn split_at_time(self, time: Timestamp) -> (Self, Self) {
        let at = self.events.partition_point(|event| event.time < time);
        let (before, behind) = self.events.split_at(at);
        (Self { events: before, ..self }, Self { events: behind, ..self })
    }

    /// The same in pieces that are small enough for a fast cache.
    pub(crate) fn pieces(self) -> impl Iterator<Item = Self> {
        self.events.chunks(MOST).map(move |events| Self { events, ..self })
    }

    /// The events.
    #[inline]
    pub fn events(self) -> impl Iterator<Item = Event<'a>> {
        self.events.iter().map(move |stored| stored.event(self.bytes))
    }

    /// Their keys.
    #[inline]
    pub(crate) fn keys(self) -> impl Iterator<Item = &'a [u8]> {
        self.events.iter().map(move |stored| &self.bytes[stored.key.0..stored.key.1])
    }
}

impl Stored {
    #[inline(always)]
    pub(crate) fn event<'a>(&self, bytes: &'a [u8]) -> Event<'a> {
        let &Self { line, time, cost, kind, key, policy } = self;
        let (key, policy) = (&bytes[key.0..key.1], &bytes[policy.0..policy.1]);
        Event { line, time, key, cost, policy, kind }
    }
}
