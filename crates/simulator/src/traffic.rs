//! Synthetic traffic: the same for the same specifications and seed on every machine.

mod spec;
pub use self::spec::{KeySpec, Steady, TrafficError, TrafficSpec};

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use sluicegate_core::{Timestamp, as_micros};

use crate::{
    batch::{Batch, StoredEvent},
    kind::Kind,
};

/// Maximum number of events in a batch.
const MAX_EVENTS: usize = 4096;

/// Generates events, each a take of cost 1, in order of time.
#[derive(Debug)]
pub struct Traffic {
    start: u64,
    end: u64,
    sources: Vec<TrafficSource>,
    /// The next time of each source that has one, by its index.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    keys: Keys,
    random: Random,
    line: u64,
    events: Vec<StoredEvent>,
    bytes: Vec<u8>,
}

/// A source of events, with its progress.
#[derive(Debug)]
struct TrafficSource {
    spec: TrafficSpec,
    random: Random,
    made: u64,
    /// Time since the start of a Poisson process, in 2^-32 of its mean distance.
    elapsed: u128,
}

/// Distribution of the keys.
#[derive(Debug)]
enum Keys {
    One,
    Uniform(u64),
    /// The cumulative weights.
    Zipf(Vec<u64>),
}

impl Traffic {
    /// Events of all `specs` together, from `start` on for the time of `length`.
    #[must_use]
    pub fn new(
        specs: &[TrafficSpec],
        keys: KeySpec,
        seed: u64,
        start: Timestamp,
        length: Duration,
    ) -> Self {
        let start = start.as_micros();
        let running = (1_u64..).zip(specs).map(|(index, spec)| TrafficSource {
            spec: *spec,
            random: Random::new(seed.wrapping_add(index << 32)),
            made: 0,
            elapsed: 0,
        });
        let mut traffic = Self {
            start,
            end: start.saturating_add(as_micros(length)).min(Timestamp::MAX.as_micros()),
            sources: running.collect(),
            next: BinaryHeap::new(),
            keys: Keys::of(keys),
            random: Random::new(seed),
            line: 0,
            events: Vec::new(),
            bytes: Vec::new(),
        };
        for index in 0..traffic.sources.len() {
            traffic.schedule(index);
        }
        traffic
    }

    /// The next events; none at the end.
    pub fn next_batch(&mut self) -> Batch<'_> {
        self.events.clear();
        self.bytes.clear();
        while self.events.len() < MAX_EVENTS
            && let Some(Reverse((time, source))) = self.next.pop()
        {
            self.line += 1;
            let start = self.bytes.len();
            let number = self.keys.draw(&mut self.random);
            self.bytes.extend_from_slice(format!("key-{number}").as_bytes());
            self.events.push(StoredEvent {
                line: self.line,
                time: Timestamp::saturating_from_micros(time),
                cost: Some(1),
                kind: Kind::Take,
                key: (start, self.bytes.len()),
                policy: (0, 0),
                id: (0, 0),
                ttl: None,
            });
            self.schedule(source);
        }
        Batch { events: &self.events, bytes: &self.bytes }
    }

    /// Schedules the next event of a source.
    fn schedule(&mut self, index: usize) {
        if let Some(after) = self.sources[index].next()
            && let Some(time) = self.start.checked_add(after)
            && time < self.end
        {
            self.next.push(Reverse((time, index)));
        }
    }
}

impl TrafficSource {
    /// Microseconds from the start to the next event.
    fn next(&mut self) -> Option<u64> {
        let made = self.made;
        self.made += 1;
        let (Steady { count, period, from, to }, elapsed) = match self.spec {
            TrafficSpec::Burst { count, at } => return (made < u64::from(count)).then_some(at),
            TrafficSpec::Even(steady) => (steady, u128::from(made) << 32),
            TrafficSpec::Poisson(steady) => {
                self.elapsed += u128::from(self.random.exponential());
                (steady, self.elapsed)
            }
        };
        let after = (elapsed * u128::from(period) / u128::from(count)) >> 32;
        let time = from.checked_add(u64::try_from(after).ok()?)?;
        (time < to).then_some(time)
    }
}

impl Keys {
    fn of(spec: KeySpec) -> Self {
        match spec {
            KeySpec::Uniform(1) => Self::One,
            KeySpec::Uniform(count) => Self::Uniform(count.into()),
            KeySpec::Zipf(count) => {
                let mut sum = 0;
                let sums = (1..=u64::from(count)).map(|rank| {
                    sum += (1 << 40) / rank;
                    sum
                });
                Self::Zipf(sums.collect())
            }
        }
    }

    /// The number of a key, from 1.
    fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::One => 1,
            Self::Uniform(count) => 1 + random.below(*count),
            Self::Zipf(sums) => {
                let drawn = random.below(sums.last().copied().unwrap_or(1));
                let index = sums.partition_point(|sum| *sum <= drawn);
                1 + u64::try_from(index).unwrap_or(0)
            }
        }
    }
}

// Random numbers: the same on every machine, because nothing here is a float. A library may change its generator,
// and with it every picture of synthetic traffic.

/// SplitMix64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A distance of a Poisson process with a mean distance of 1, in 2^-32.
    ///
    /// By comparisons alone (John von Neumann, "Various techniques used in connection with random digits", 1951):
    /// whether the length of a run of falling numbers is even or odd follows the series of e.
    fn exponential(&mut self) -> u64 {
        let mut whole = 0;
        loop {
            let first = self.next();
            let (mut last, mut length) = (first, 1);
            loop {
                let drawn = self.next();
                if drawn > last {
                    break;
                }
                last = drawn;
                length += 1;
            }
            if length % 2 == 1 {
                return (whole << 32) + (first >> 32);
            }
            whole += 1;
        }
    }
}

#[cfg(test)]
mod tests;
