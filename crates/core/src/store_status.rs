//! The status of a store, without a call to it.

use std::time::Duration;

use crate::counters::Counters;

/// Status of a store.
#[derive(Clone, Debug)]
pub enum StoreStatus {
    /// State in this process: every operation is answered now.
    Local(TableUsage),
    /// State elsewhere.
    Remote(Box<RemoteStatus>),
}

/// Memory of a store in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Stored keys, including recovered ones that have not been reclaimed yet.
    pub keys: usize,
    /// Bytes in use.
    pub bytes: usize,
    /// Upper bound on `bytes`.
    pub max_bytes: usize,
    /// Requests on new keys while the table was full: denied, or allowed uncounted.
    pub table_full: u64,
}

/// The last known state of a store elsewhere.
#[derive(Clone, Debug, Default)]
pub struct RemoteStatus {
    /// Its nodes.
    pub nodes: Vec<NodeHealth>,
    /// Why no decision of the store can be had now: its node, or every node of a cluster, is unavailable, or
    /// lets the user use no key. `None` while it can, as far as is known.
    pub unavailable: Option<String>,
    /// Counters since the store was created.
    pub counters: Counters,
    /// Durations of round trips so far.
    pub round_trips: RoundTrips,
}

/// Last known state of one node of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Its address.
    pub endpoint: String,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// Whether its circuit breaker is open: it cannot be reached, does not answer, or takes no writes, and
    /// is only probed.
    pub breaker_open: bool,
}

/// Round trips to a store that ended with a reply: of one command, or of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Their number in each bucket.
    pub counts: [u64; Self::BUCKETS],
    /// Sum of their durations.
    pub total: Duration,
}

impl RoundTrips {
    /// Number of buckets.
    pub const BUCKETS: usize = Self::BOUNDS.len() + 1;
    /// Upper bounds of the buckets, in microseconds; the last bucket has none.
    pub const BOUNDS: [u64; 14] = [
        50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 15_000, 25_000, 50_000, 100_000, 250_000,
        1_000_000,
    ];

    /// Number of round trips in each bucket, with the upper bound of the bucket. The last has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = Self::BOUNDS.into_iter().map(|micros| Some(Duration::from_micros(micros)));
        bounds.chain([None]).zip(self.counts)
    }
}
