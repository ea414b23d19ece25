//! The sampled keys: the only ones whose names the server has.
//!
//! The store holds hashes instead of keys, so nothing else can be listed. The list is rebuilt once a
//! second while keys are sampled: while the dashboard has viewers, and for [`SAMPLING_LINGER`] after a
//! `SG.KEYS`.
//!
//! Invariants:
//! - a walk with cursors sees every key that is in the list from its first call to its last;
//! - one call examines at most the requested number of keys, plus those of an equal hash.

use std::{sync::Arc, time::Duration};

use ahash::RandomState;
use arc_swap::ArcSwap;

use super::heavy_hitters::{FadedTime, HeavyHitter, MAX_SAMPLED_KEY};

/// How long keys are sampled after they were listed.
pub(crate) const SAMPLING_LINGER: Duration = Duration::from_secs(60);

/// The sampled keys, replaced once a second.
#[derive(Debug, Default)]
pub(crate) struct SampledKeys {
    list: ArcSwap<List>,
    /// Hashes order the keys of a walk, because they are the same in each list.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct List {
    keys: Vec<SampledKey>,
    scale: Scale,
}

/// The scale of the counts in a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scale {
    pub(crate) span: FadedTime,
    /// One in this number of decisions was sampled.
    pub(crate) every: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SampledKey {
    hash: u64,
    pub(crate) count: HeavyHitter,
    /// Its denials.
    pub(crate) denied: Option<HeavyHitter>,
}

/// The keys of one call of a walk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyPage {
    /// The cursor for the next call; 0 at the end.
    pub(crate) next: u64,
    pub(crate) keys: Vec<Box<[u8]>>,
}

/// The busiest keys of a list.
#[derive(Debug)]
pub(crate) struct Busiest {
    /// The number of all matching keys.
    pub(crate) count: usize,
    pub(crate) keys: Vec<SampledKey>,
    pub(crate) scale: Scale,
}

/// Which keys to list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyFilter<'a> {
    pub(crate) prefix: &'a [u8],
    pub(crate) denied: bool,
}

impl KeyFilter<'_> {
    pub(crate) fn has(&self, key: &SampledKey) -> bool {
        key.count.key.starts_with(self.prefix) && (key.denied.is_some() || !self.denied)
    }
}

impl SampledKeys {
    /// Replaces the list by the counts of all sampled keys and of the denied ones.
    pub(crate) fn replace(
        &self,
        all: Vec<HeavyHitter>,
        mut denied: Vec<HeavyHitter>,
        scale: Scale,
    ) {
        denied.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let mut is_listed = vec![false; denied.len()];
        let mut keys = Vec::with_capacity(all.len());
        for count in all {
            let hash = self.hash(&count.key);
            let place = denied.binary_search_by(|it| it.key.cmp(&count.key)).ok();
            place.into_iter().for_each(|place| is_listed[place] = true);
            let denied = place.map(|place| denied[place].clone());
            keys.push(SampledKey { hash, count, denied });
        }
        for (count, is_listed) in denied.into_iter().zip(is_listed) {
            if !is_listed {
                let hash = self.hash(&count.key);
                keys.push(SampledKey { hash, denied: Some(count.clone()), count });
            }
        }
        keys.sort_unstable_by(|a, b| (a.hash, &a.count.key).cmp(&(b.hash, &b.count.key)));
        self.list.store(Arc::new(List { keys, scale }));
    }

    /// Never 0, which is the cursor of the start and the end.
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key).max(1)
    }

    /// The matching keys among the `count` that follow `cursor`.
    /// Keys that were cut are left out.
    pub(crate) fn scan(&self, cursor: u64, count: usize, filter: KeyFilter<'_>) -> KeyPage {
        let list = self.list.load();
        let keys = &list.keys;
        let start = keys.partition_point(|it| it.hash <= cursor);
        let mut end = keys.len().min(start.saturating_add(count.max(1)));
        // A cursor cannot separate keys of an equal hash.
        while end < keys.len() && keys[end].hash == keys[end - 1].hash {
            end += 1;
        }
        let next = if end < keys.len() { keys[end - 1].hash } else { 0 };
        let found = keys[start..end].iter();
        let found = found.filter(|it| filter.has(it) && it.count.key.len() < MAX_SAMPLED_KEY);
        KeyPage { next, keys: found.map(|it| it.count.key.clone()).collect() }
    }

    /// Up to `most` keys: those with most denials first, then those with most requests.
    pub(crate) fn busiest(&self, most: usize, filter: KeyFilter<'_>) -> Busiest {
        let list = self.list.load();
        let mut found: Vec<_> = list.keys.iter().filter(|it| filter.has(it)).collect();
        let rank = |it: &SampledKey| (it.denied.as_ref().map_or(0, |it| it.count), it.count.count);
        found.sort_by_key(|it| std::cmp::Reverse(rank(it)));
        let count = found.len();
        Busiest { count, keys: found.into_iter().take(most).cloned().collect(), scale: list.scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(range: std::ops::Range<u64>) -> Vec<HeavyHitter> {
        let count = |number: u64| HeavyHitter {
            key: format!("key:{number}").into_bytes().into(),
            count: number,
            error: 0,
            denier: None,
        };
        range.map(count).collect()
    }

    fn walk(sampled: &SampledKeys, count: usize, filter: KeyFilter<'_>) -> Vec<Box<[u8]>> {
        let (mut cursor, mut found) = (0, Vec::new());
        loop {
            let KeyPage { next, keys } = sampled.scan(cursor, count, filter);
            assert!(keys.len() <= count);
            found.extend(keys);
            cursor = next;
            if cursor == 0 {
                found.sort();
                return found;
            }
        }
    }

    #[test]
    fn scan_walk_returns_each_key_once() {
        let sampled = SampledKeys::default();
        let none = KeyPage { next: 0, keys: Vec::new() };
        assert_eq!(sampled.scan(0, 10, KeyFilter::default()), none);
        sampled.replace(counts(0..500), counts(490..510), Scale::default());
        for count in [1, 7, 100, 1000] {
            let found = walk(&sampled, count, KeyFilter::default());
            assert_eq!(found.len(), 510);
            assert!(found.is_sorted_by(|a, b| a < b), "each once");
        }
        let denied = KeyFilter { prefix: b"", denied: true };
        assert_eq!(walk(&sampled, 7, denied).len(), 20);
        let prefix = KeyFilter { prefix: b"key:50", denied: false };
        assert_eq!(walk(&sampled, 7, prefix).len(), 11);
    }

    #[test]
    fn scan_while_the_list_changes_returns_all_lasting_keys() {
        let sampled = SampledKeys::default();
        let (mut cursor, mut found, mut turn) = (0, Vec::new(), 0);
        loop {
            let mut all = counts(0..100);
            all.extend(counts(1_000 + turn * 50..1_050 + turn * 50));
            sampled.replace(all, Vec::new(), Scale::default());
            let KeyPage { next, keys } = sampled.scan(cursor, 10, KeyFilter::default());
            found.extend(keys);
            (cursor, turn) = (next, turn + 1);
            if cursor == 0 {
                break;
            }
        }
        for count in counts(0..100) {
            assert!(found.contains(&count.key), "{count:?}");
        }
    }

    #[test]
    fn busiest_puts_denied_keys_first() {
        let sampled = SampledKeys::default();
        sampled.replace(counts(0..100), counts(10..20), Scale::default());
        let Busiest { count, keys: busiest, .. } = sampled.busiest(12, KeyFilter::default());
        let names: Vec<_> =
            busiest.iter().map(|it| String::from_utf8_lossy(&it.count.key)).collect();
        assert_eq!(count, 100);
        assert_eq!((&*names[0], &*names[9], &*names[10]), ("key:19", "key:10", "key:99"));
    }
}
