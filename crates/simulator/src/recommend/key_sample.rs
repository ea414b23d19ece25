//! A bounded number of keys out of any number: all of them, or else a random sample and the busiest.
//!
//! Each key has a hash. While the table is too full, the sample is halved: it has the keys whose hash begins with one more
//! zero bit. A key of the sample was therefore in it from its first request on, and represents those that were left out.
//! Beside the sample are the keys with the most requests among the others.

use std::hash::{DefaultHasher, Hasher};

use ahash::RandomState;
use hashbrown::HashMap;

/// Keys with a value each, at most [`KeySample::capacity`] of them.
#[derive(Debug)]
pub(crate) struct KeySample<V> {
    keys: HashMap<Box<[u8]>, Slot<V>, RandomState>,
    capacity: usize,
    /// The sample has one key of `2^level`.
    level: u32,
    /// Upper bound on the requests that a key had before it was dropped, in all times that it was.
    missed: u64,
}

#[derive(Debug)]
struct Slot<V> {
    /// Boxed, because the table has up to twice as many slots as keys.
    value: Box<V>,
    /// Number of zero bits that the hash of the key begins with.
    zeros: u32,
}

/// A key of the table.
#[derive(Debug)]
pub(crate) struct Sampled<'a, V> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a V,
    /// Whether it is in the sample, or in the table because of its requests alone.
    pub(crate) is_in_sample: bool,
}

impl<V> KeySample<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { keys: HashMap::default(), capacity: capacity.max(4), level: 0, missed: 0 }
    }

    /// The value of `key`, if it is in the table.
    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        self.keys.get_mut(key).map(|slot| &mut *slot.value)
    }

    /// Adds a key that is not in the table; `requests` counts those of a value.
    pub(crate) fn insert(&mut self, key: &[u8], value: V, requests: impl Fn(&V) -> u64) {
        if self.keys.len() >= self.capacity {
            self.make_space(requests);
        }
        let slot = Slot { value: Box::new(value), zeros: leading_zeros(key) };
        self.keys.insert(key.into(), slot);
    }

    /// How many keys one of the sample represents: 1 if no key was left out.
    pub(crate) const fn share(&self) -> u64 {
        1 << self.level
    }

    /// Requests above which a key is in the table, with at least three quarters of them: 0 if no key was left out.
    pub(crate) const fn certain(&self) -> u64 {
        self.missed * 4
    }

    /// The keys of the table, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Sampled<'_, V>> {
        self.keys.iter().map(|(key, slot)| {
            let is_in_sample = slot.zeros >= self.level;
            Sampled { key, value: &*slot.value, is_in_sample }
        })
    }

    /// Leaves at most half of the table to the sample, and a quarter to the busiest of the others.
    #[cold]
    fn make_space(&mut self, requests: impl Fn(&V) -> u64) {
        let is_in = |slot: &Slot<V>, level: u32| slot.zeros >= level;
        while self.level < 63
            && self.keys.values().filter(|slot| is_in(slot, self.level)).count() > self.capacity / 2
        {
            self.level += 1;
        }
        let level = self.level;
        let others = self.keys.values().filter(|slot| !is_in(slot, level));
        let mut counts: Vec<u64> = others.map(|slot| requests(&slot.value)).collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        // Keys with as many requests as the first that has no place are dropped as well.
        let Some(&most) = counts.get(self.capacity / 4).or(counts.last()) else { return };
        self.missed += most;
        self.keys.retain(|_, slot| is_in(slot, level) || requests(&slot.value) > most);
    }
}

/// Number of zero bits that the hash of `key` begins with. It is the same on every machine, and so is the sample.
fn leading_zeros(key: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish().leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts requests by key.
    fn sample(capacity: usize, keys: impl Iterator<Item = u64>) -> KeySample<u64> {
        let mut sample = KeySample::new(capacity);
        for key in keys {
            let key = key.to_string();
            match sample.get_mut(key.as_bytes()) {
                Some(count) => *count += 1,
                None => sample.insert(key.as_bytes(), 1, |count| *count),
            }
            assert!(sample.keys.len() <= capacity);
        }
        sample
    }

    /// The number of keys as the sample estimates it.
    fn estimate(sample: &KeySample<u64>) -> u64 {
        let sampled = sample.keys().filter(|it| it.is_in_sample).count();
        sample.share() * u64::try_from(sampled).unwrap()
    }

    #[test]
    fn key_sample_with_space_has_every_key() {
        let sample = sample(100, (0..300).map(|it| it % 100));
        let keys: Vec<_> = sample.keys().map(|it| (*it.value, it.is_in_sample)).collect();
        assert_eq!((sample.share(), keys), (1, vec![(3, true); 100]));
    }

    #[test]
    fn key_sample_estimates_all_keys_and_keeps_the_busiest() {
        // A hundred thousand keys with four requests, and five with a thousand each: one begins late.
        let light = |it: u64| 10 + (it / 4 + 25_000 * (it % 4)) % 100_000;
        let busy = |it: u64| (it.is_multiple_of(80) && it > 40_000).then_some(it / 80 % 5);
        let keys = (0..400_000_u64).flat_map(|it| [Some(light(it)), busy(it)]).flatten();
        let sample = sample(4096, keys);
        assert!(sample.share() > 1);
        let total = estimate(&sample);
        assert!((90_000..110_000).contains(&total), "{total}");
        let mut busiest: Vec<_> = sample.keys().filter(|it| *it.value > 100).collect();
        busiest.sort_by_key(|it| it.key);
        let names: Vec<&[u8]> = busiest.iter().map(|it| it.key).collect();
        assert_eq!(names, [b"0", b"1", b"2", b"3", b"4"]);
        assert!(busiest.iter().all(|it| *it.value > 890), "{busiest:?}");
        assert!(sample.certain() < 890, "{}", sample.certain());
        // A key of the sample has all of its requests.
        let light = sample.keys().filter(|it| it.is_in_sample && *it.value < 100);
        assert!(light.map(|it| *it.value).all(|requests| requests == 4));
    }

    #[test]
    fn key_sample_of_equal_keys_stays_within_its_capacity() {
        let sample = sample(256, (0..100_000).map(|it| it % 50_000));
        let total = estimate(&sample);
        assert!((35_000..65_000).contains(&total), "{total}");
        assert!(sample.keys().filter(|it| it.is_in_sample).all(|it| *it.value == 2));
    }
}
