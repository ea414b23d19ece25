//! The most frequent keys among any number of keys, in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi, 2005): a fixed number of counters. A key without a counter
//! takes over the lowest one, whose count becomes the error of the key.
//!
//! Invariants, each a test below:
//! - the count of a key is an upper bound, and the count less its error a lower bound;
//! - the error is at most the count of all keys, divided by the number of counters;
//! - both hold for merged lists, and after all of them faded alike.

use super::cause::Denier;

/// Maximum number of counters of a list.
pub(crate) const MAX_COUNTS: usize = 128;
/// Longer keys are cut to this length, in bytes.
pub(crate) const MAX_SAMPLED_KEY: usize = 512;
/// The share of its counts that a list loses each second, as its inverse: it covers about sixteen seconds.
const FADE: u64 = 16;
/// The count of one decision: counts that fade are fixed-point numbers.
pub(crate) const UNIT: u64 = 1 << 16;

/// The counter of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeavyHitter {
    pub(crate) key: Box<[u8]>,
    /// An upper bound on its decisions, in [`UNIT`]s.
    pub(crate) count: u64,
    /// Subtracted from `count`, it gives the lower bound.
    pub(crate) error: u64,
    /// The limit that denied it last.
    pub(crate) denier: Option<Denier>,
}

/// The counters of up to [`MAX_COUNTS`] keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeavyHitters {
    counts: Vec<HeavyHitter>,
}

impl HeavyHitters {
    /// Counts `weight` for `key`, in time proportional to the number of counters.
    pub(crate) fn add(&mut self, key: &[u8], weight: u64, denier: Option<Denier>) {
        let key = &key[..key.len().min(MAX_SAMPLED_KEY)];
        if let Some(known) = self.counts.iter_mut().find(|it| *it.key == *key) {
            known.count += weight;
            known.denier = denier;
            return;
        }
        if self.counts.len() < MAX_COUNTS {
            self.counts.push(HeavyHitter { key: key.into(), count: weight, error: 0, denier });
            return;
        }
        if let Some(least) = self.counts.iter_mut().min_by_key(|it| it.count) {
            let error = least.count;
            *least = HeavyHitter { key: key.into(), count: error + weight, error, denier };
        }
    }

    /// Reduces all counts, once a second.
    pub(crate) fn fade(&mut self) {
        for it in &mut self.counts {
            it.count -= it.count / FADE;
            it.error -= it.error / FADE;
        }
        // Counts below a sixteenth of a decision become zero.
        if self.counts.len() < MAX_COUNTS {
            self.counts.retain(|it| it.count >= UNIT / FADE);
        }
    }

    /// Upper bound on the count of a key without a counter.
    fn unseen(&self) -> u64 {
        if self.counts.len() < MAX_COUNTS {
            return 0;
        }
        self.counts.iter().map(|it| it.count).min().unwrap_or(0)
    }

    /// The `most` keys with the highest sums over several lists, in descending order.
    pub(crate) fn top(lists: &[Self], most: usize) -> Vec<HeavyHitter> {
        let mut all: Vec<HeavyHitter> = Vec::new();
        for it in lists.iter().flat_map(|list| &list.counts) {
            if all.iter().any(|known| known.key == it.key) {
                continue;
            }
            let (mut count, mut error, mut denier) = (0, 0, None);
            for list in lists {
                match list.counts.iter().find(|other| other.key == it.key) {
                    Some(known) => {
                        count += known.count;
                        error += known.error;
                        denier = denier.or_else(|| known.denier.clone());
                    }
                    None => {
                        count += list.unseen();
                        error += list.unseen();
                    }
                }
            }
            all.push(HeavyHitter { key: it.key.clone(), count, error, denier });
        }
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        all.truncate(most);
        all
    }
}

/// The time that the counts cover, in seconds and [`UNIT`]s.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FadedTime(u64);

impl FadedTime {
    /// Adds a span of time, in microseconds, over which nothing has faded.
    pub(crate) const fn pass(&mut self, micros: u64) {
        self.0 += micros.saturating_mul(UNIT) / 1_000_000;
    }

    pub(crate) const fn fade(&mut self) {
        self.0 -= self.0 / FADE;
    }

    /// A count as a rate per second.
    pub(crate) fn rate(self, count: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "it is shown with three digits")]
        let (count, span) = (count as f64, self.0 as f64);
        if self.0 == 0 { 0.0 } else { count / span }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Reproducible keys: many rare ones and a few frequent ones.
    fn keys(seed: u64, count: usize) -> impl Iterator<Item = Vec<u8>> {
        let mut state = seed;
        (0..count).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = state >> 40;
            let often = number.is_multiple_of(3);
            format!("{}", if often { number % 20 } else { number }).into_bytes()
        })
    }

    #[test]
    fn heavy_hitters_counts_are_bounds_within_their_error() {
        let mut lists = [HeavyHitters::default(), HeavyHitters::default()];
        let mut seen: HashMap<Vec<u8>, u64> = HashMap::new();
        let mut total = 0;
        for (list, seed) in lists.iter_mut().zip([1, 2]) {
            for key in keys(seed, 20_000) {
                list.add(&key, 1, None);
                *seen.entry(key).or_default() += 1;
                total += 1;
            }
        }
        let room = u64::try_from(MAX_COUNTS).unwrap();
        let top = HeavyHitters::top(&lists, MAX_COUNTS);
        for HeavyHitter { key, count, error, .. } in &top {
            let truth = seen[&**key];
            assert!((count - error..=*count).contains(&truth), "{truth} {count} {error}");
            assert!(*error <= total / room, "{error} of {total}");
        }
        let mut often: Vec<_> = seen.iter().filter(|it| *it.1 > total / room).collect();
        often.sort_by_key(|it| std::cmp::Reverse(it.1));
        assert!(often.len() >= 20);
        for (key, _) in often {
            assert!(top.iter().any(|it| *it.key == **key), "a frequent key is listed");
        }
        let most = top.iter().map(|it| it.error).max().unwrap_or(0);
        println!("figure: of {total} seen, the error is at most {most}; {} may be", total / room);
    }

    #[test]
    fn heavy_hitters_fading_keeps_rates_and_forgets_old_keys() {
        let (mut list, mut span) = (HeavyHitters::default(), FadedTime::default());
        for _ in 0..300 {
            list.fade();
            span.fade();
            list.add(b"a", 10 * UNIT, None);
            span.pass(1_000_000);
            let top = HeavyHitters::top(std::slice::from_ref(&list), 1);
            let rate = span.rate(top[0].count);
            assert!((rate - 10.0).abs() < 0.01, "{rate}");
        }
        for _ in 0..300 {
            list.fade();
        }
        assert!(list.counts.is_empty());
    }

    #[test]
    fn heavy_hitters_long_key_is_cut() {
        let mut list = HeavyHitters::default();
        list.add(&[b'x'; 600], UNIT, None);
        list.add(&[b'x'; 700], UNIT, None);
        let top = HeavyHitters::top(&[list], 9);
        let key = [b'x'; MAX_SAMPLED_KEY].into();
        assert_eq!(top, [HeavyHitter { key, count: 2 * UNIT, error: 0, denier: None }]);
    }
}
