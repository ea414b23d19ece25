//! Durations of round trips to the store, as a histogram.

use std::time::Duration;

use crate::counters::Counter;

/// Upper bounds of the buckets, in microseconds; one more bucket has no bound.
const BOUNDS: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 15_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000,
];

/// Round trips to the store that ended with a reply: of one command, or of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundTrips {
    counts: [u64; BOUNDS.len() + 1],
    /// Sum of their durations.
    pub total: Duration,
}

impl RoundTrips {
    /// Number of round trips in each bucket, with the upper bound of the bucket. The last has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = BOUNDS.into_iter().map(|micros| Some(Duration::from_micros(micros)));
        bounds.chain([None]).zip(self.counts)
    }
}

/// What many threads record.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    counts: [Counter; BOUNDS.len() + 1],
    micros: Counter,
}

impl LatencyHistogram {
    pub(crate) fn record(&self, micros: u64) {
        self.counts[BOUNDS.partition_point(|&bound| bound < micros)].one();
        self.micros.add(micros);
    }

    pub(crate) fn read(&self) -> RoundTrips {
        RoundTrips {
            counts: std::array::from_fn(|index| self.counts[index].read()),
            total: Duration::from_micros(self.micros.read()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_duration_at_a_bound_counts_below_it() {
        let histogram = LatencyHistogram::default();
        for micros in [0, 50, 51, 1_000_000, 1_000_001] {
            histogram.record(micros);
        }
        let read = histogram.read();
        let filled: Vec<_> = read.buckets().filter(|(_, count)| *count > 0).collect();
        let bound = |micros| Some(Duration::from_micros(micros));
        assert_eq!(filled, [(bound(50), 2), (bound(100), 1), (bound(1_000_000), 1), (None, 1)]);
        assert_eq!(read.total, Duration::from_micros(2_000_102));
    }
}
