//! The last 15 minutes: one sample a second of counters that the server keeps anyway.
//!
//! Invariants:
//! - a history holds at most [`CAPACITY`] samples, in memory of a fixed size;
//! - samples are totals since the start, so that a rate is the difference of two by their times.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;

use super::{frame::LatencyFrame, sources::Sources};
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

/// The counters at one time: `[at_us, allowed, denied, p50_us, p99_us]`. The last two are latencies since the previous
/// sample, in microseconds; `null` if there were no decisions.
type Sample = (u64, u64, u64, Option<u32>, Option<u32>);

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
        let latency = LatencyFrame::of(&histogram.since(&samples.histogram));
        samples.histogram = histogram;
        let micros = |micros| u32::try_from(micros).unwrap_or(u32::MAX);
        samples.push((
            sources.decider.now().as_micros(),
            sources.stats.sum(Stats::allowed),
            sources.stats.sum(Stats::denied),
            latency.map(|it| micros(it.p50_us)),
            latency.map(|it| micros(it.p99_us)),
        ));
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
            let latency = |micros| (second % 2 == 0).then_some(micros);
            samples.push((second * 1_000_000, second, 0, latency(7), latency(9)));
        }
        assert_eq!((samples.ring.len(), samples.ring.capacity()), (CAPACITY, CAPACITY));
        assert_eq!(samples.ring[0].1, 1_100);
        let bytes = samples.ring.capacity() * size_of::<Sample>();
        println!("figure: the history takes {bytes} bytes");
        let last = serde_json::to_string(&samples.ring[CAPACITY - 1]).unwrap();
        assert_eq!(last, "[1999000000,1999,0,null,null]");
        let before = serde_json::to_string(&samples.ring[CAPACITY - 2]).unwrap();
        assert_eq!(before, "[1998000000,1998,0,7,9]");
    }
}
