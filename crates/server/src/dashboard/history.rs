//! The last 15 minutes: one sample a second of counters that the server keeps anyway.
//!
//! Invariants:
//! - a history holds at most [`CAPACITY`] samples, in memory of a fixed size;
//! - samples are totals since the start, so that a rate is the difference of two by their times.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::{Serialize, Serializer, ser::SerializeTuple};
use sluicegate_core::Timestamp;

use super::{frame::Latency, sources::Sources};
use crate::stats::{LatencyHistogram, Stats};

/// Samples that a history holds: those of 15 minutes.
pub(super) const CAPACITY: usize = 15 * 60;

/// Samples, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    ring: VecDeque<Sample>,
    /// The latency histogram at the last sample.
    histogram: LatencyHistogram,
}

/// The counters at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    at: Timestamp,
    allowed: u64,
    denied: u64,
    /// p50 and p99 since the previous sample, in microseconds, if there were decisions.
    latency: Option<[u32; 2]>,
}

/// `[at_us, allowed, denied, p50_us, p99_us]`, the last two `null` if there were no decisions.
impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(5)?;
        tuple.serialize_element(&self.at.as_micros())?;
        tuple.serialize_element(&self.allowed)?;
        tuple.serialize_element(&self.denied)?;
        tuple.serialize_element(&self.latency.map(|it| it[0]))?;
        tuple.serialize_element(&self.latency.map(|it| it[1]))?;
        tuple.end()
    }
}

/// The response of `GET /dashboard/history`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    samples: Vec<Sample>,
}

impl History {
    /// Adds a sample.
    pub(super) fn sample(&self, sources: &Sources) {
        let mut samples = self.0.lock();
        let histogram = sources.latency();
        let latency = Latency::of(&histogram.since(&samples.histogram));
        samples.histogram = histogram;
        let micros = |micros| u32::try_from(micros).unwrap_or(u32::MAX);
        samples.push(Sample {
            at: sources.decider.now(),
            allowed: sources.stats.sum(Stats::allowed),
            denied: sources.stats.sum(Stats::denied),
            latency: latency.map(|it| [micros(it.p50_us), micros(it.p99_us)]),
        });
    }

    pub(super) fn report(&self) -> Report {
        Report { samples: self.0.lock().ring.iter().copied().collect() }
    }
}

impl Samples {
    fn push(&mut self, sample: Sample) {
        if self.ring.capacity() == 0 {
            self.ring.reserve_exact(CAPACITY);
        }
        if self.ring.len() == CAPACITY {
            self.ring.pop_front();
        }
        self.ring.push_back(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_holds_the_last_15_minutes_in_fixed_memory() {
        let mut samples = Samples::default();
        for second in 0..2_000_u64 {
            let at = Timestamp::from_micros(second * 1_000_000).unwrap();
            let latency = (second % 2 == 0).then_some([7, 9]);
            samples.push(Sample { at, allowed: second, denied: 0, latency });
        }
        assert_eq!((samples.ring.len(), samples.ring.capacity()), (CAPACITY, CAPACITY));
        assert_eq!(samples.ring[0].allowed, 1_100);
        let bytes = samples.ring.capacity() * size_of::<Sample>();
        println!("figure: the history takes {bytes} bytes");
        let last = serde_json::to_string(&samples.ring[CAPACITY - 1]).unwrap();
        assert_eq!(last, "[1999000000,1999,0,null,null]");
        let before = serde_json::to_string(&samples.ring[CAPACITY - 2]).unwrap();
        assert_eq!(before, "[1998000000,1998,0,7,9]");
    }
}
