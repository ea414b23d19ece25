//! Several events at once.

use std::time::Duration;

use sluicegate_core::Timestamp;

use crate::{event::Event, kind::Kind};

/// Maximum number of events of a trace in a batch: few enough that the state of their keys stays in a fast cache.
pub(crate) const MAX_EVENTS: usize = 64;

/// Events that are adjacent in memory, in order of time.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(crate) events: &'a [StoredEvent],
    pub(crate) bytes: &'a [u8],
}

/// An event, with its texts as ranges of the bytes.
#[derive(Debug)]
pub(crate) struct StoredEvent {
    pub(crate) line: u64,
    pub(crate) time: Timestamp,
    pub(crate) cost: Option<u32>,
    pub(crate) kind: Kind,
    pub(crate) key: (usize, usize),
    pub(crate) policy: (usize, usize),
    pub(crate) id: (usize, usize),
    pub(crate) ttl: Option<Duration>,
}

impl<'a> Batch<'a> {
    /// Whether there are no events, which is the case only at the end.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The number of events.
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
        self.events.chunks(MAX_EVENTS).map(move |events| Self { events, ..self })
    }

    /// The events.
    pub fn events(self) -> impl Iterator<Item = Event<'a>> {
        self.events.iter().map(move |stored| stored.event(self.bytes))
    }

    /// Their keys.
    pub(crate) fn keys(self) -> impl Iterator<Item = &'a [u8]> {
        self.events.iter().map(move |stored| &self.bytes[stored.key.0..stored.key.1])
    }
}

impl StoredEvent {
    pub(crate) fn event<'a>(&self, bytes: &'a [u8]) -> Event<'a> {
        let &Self { line, time, cost, kind, key, policy, id, ttl } = self;
        let [key, policy, id] = [key, policy, id].map(|(from, to)| &bytes[from..to]);
        Event { line, time, key, cost, policy, kind, id, ttl }
    }
}
