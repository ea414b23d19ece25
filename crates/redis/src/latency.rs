//! Durations of round trips to the store, as a histogram.

use std::time::Duration;

use sluicegate_core::RoundTrips;

use crate::counters::Counter;

/// The round trips of many threads.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    counts: [Counter; RoundTrips::BUCKETS],
    micros: Counter,
}

impl LatencyHistogram {
    pub(crate) fn record(&self, micros: u64) {
        self.counts[RoundTrips::BOUNDS.partition_point(|&bound| bound < micros)].one();
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
