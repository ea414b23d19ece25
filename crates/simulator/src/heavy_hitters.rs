//! Heavy hitters: the keys with the most requests, among any number of keys (Misra and Gries 1982).

use std::cmp::Reverse;

use ahash::RandomState;
use hashbrown::HashMap;

/// Upper bound on the keys that are counted at a time. With more, the counts are estimates.
pub const MAX_BUSY_KEYS: usize = 65_536;

/// Counts requests by key, exactly up to [`MAX_BUSY_KEYS`] keys.
#[derive(Debug, Default)]
pub struct HeavyHitters {
    keys: HashMap<Box<[u8]>, Counts, RandomState>,
    /// Upper bound on the requests missing from the count of a key.
    missed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u64,
    denied: u64,
}

/// A key with many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyKey<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its requests.
    pub requests: u64,
    /// Those of them that were denied.
    pub denied: u64,
}

impl HeavyHitters {
    /// Counts a request of `key`.
    pub fn count(&mut self, key: &[u8], denied: bool) {
        let counts = match self.keys.get_mut(key) {
            Some(counts) => counts,
            None => {
                if self.keys.len() >= MAX_BUSY_KEYS {
                    self.drop_idle_keys();
                }
                self.keys.entry(key.into()).or_default()
            }
        };
        counts.requests += 1;
        counts.denied += u64::from(denied);
    }

    /// The keys with the most requests, the busiest first, and the most by which each count may be
    /// too low: 0 unless there were more than [`MAX_BUSY_KEYS`] keys.
    #[must_use]
    pub fn busiest(&self, most: usize) -> (Vec<BusyKey<'_>>, u64) {
        let order = |key: &BusyKey<'_>| Reverse(key.requests);
        let keys = self.keys.iter();
        let mut keys: Vec<_> = keys
            .map(|(key, &Counts { requests, denied })| BusyKey { key, requests, denied })
            .collect();
        keys.sort_unstable_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.key.cmp(b.key)));
        keys.truncate(most);
        (keys, self.missed)
    }

    /// Takes the median off every count and drops the keys that have none left, at least half of
    /// them. (After Misra and Gries, "Finding repeated elements", 1982.)
    #[cold]
    fn drop_idle_keys(&mut self) {
        let mut counts: Vec<u64> = self.keys.values().map(|counts| counts.requests).collect();
        let middle = counts.len() / 2;
        let (_, &mut median, _) = counts.select_nth_unstable(middle);
        self.missed += median;
        self.keys.retain(|_, counts| {
            counts.requests = counts.requests.saturating_sub(median);
            counts.denied = counts.denied.min(counts.requests);
            counts.requests > 0
        });
    }
}
