//! The keys that are asked about most, among any number of keys, in a bounded room.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi, 2005): as many counters as there is room for. A key
//! that has none takes over the least, and what that had counted is its error.
//!
//! Invariants, each a test below:
//! - a key was seen at most as often as is told, and at least as often as that less its error;
//! - the error is at most what was seen of all keys, divided by the number of counters;
//! - both hold for sketches that were merged, and after all of them faded alike.

use super::cause::Denier;

/// Counters of a sketch.
pub(crate) const MAX_COUNTS: usize = 128;
/// Of a longer key so many bytes are looked at, and kept.
pub(crate) const MAX_SAMPLED_KEY: usize = 512;
/// Each second, a sketch forgets one part in so many: it tells of some sixteen seconds.
const FADE: u64 = 16;
/// One decision. Counts that fade need places behind the point.
pub(crate) const UNIT: u64 = 1 << 16;

/// What was counted of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Count {
    pub(crate) key: Box<[u8]>,
    /// At most so often was it seen, in [`UNIT`]s,
    pub(crate) count: u64,
    /// and at least so much less often.
    pub(crate) error: u64,
    /// What denied it last.
    pub(crate) denier: Option<Denier>,
}

/// The keys that are seen most, at most [`MAX_COUNTS`] of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketch {
    counts: Vec<Count>,
}

impl Sketch {
    /// Counts `weight` for `key`. Takes as long as it takes to look at each counter.
    pub(crate) fn add(&mut self, key: &[u8], weight: u64, denier: Option<Denier>) {
        let key = &key[..key.len().min(MAX_SAMPLED_KEY)];
        if let Some(known) = self.counts.iter_mut().find(|it| *it.key == *key) {
            known.count += weight;
            known.denier = denier;
            return;
        }
        if self.counts.len() < MAX_COUNTS {
            self.counts.push(Count { key: key.into(), count: weight, error: 0, denier });
            return;
        }
        if let Some(least) = self.counts.iter_mut().min_by_key(|it| it.count) {
            let error = least.count;
            *least = Count { key: key.into(), count: error + weight, error, denier };
        }
    }

    /// A second has passed: what was before counts for less.
    pub(crate) fn fade(&mut self) {
        for it in &mut self.counts {
            it.count -= it.count / FADE;
            it.error -= it.error / FADE;
        }
        // What is less than a sixteenth of a decision is gone.
        if self.counts.len() < MAX_COUNTS {
            self.counts.retain(|it| it.count >= UNIT / FADE);
        }
    }

    /// What a key may have been seen that has no counter.
    fn unseen(&self) -> u64 {
        if self.counts.len() < MAX_COUNTS {
            return 0;
        }
        self.counts.iter().map(|it| it.count).min().unwrap_or(0)
    }

    /// The `most` keys that several sketches together have seen most, the first of them first.
    pub(crate) fn top(sketches: &[Self], most: usize) -> Vec<Count> {
        let mut all: Vec<Count> = Vec::new();
        for it in sketches.iter().flat_map(|sketch| &sketch.counts) {
            if all.iter().any(|known| known.key == it.key) {
                continue;
            }
            let (mut count, mut error, mut denier) = (0, 0, None);
            for sketch in sketches {
                match sketch.counts.iter().find(|other| other.key == it.key) {
                    Some(known) => {
                        count += known.count;
                        error += known.error;
                        denier = denier.or_else(|| known.denier.clone());
                    }
                    None => {
                        count += sketch.unseen();
                        error += sketch.unseen();
                    }
                }
            }
            all.push(Count { key: it.key.clone(), count, error, denier });
        }
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        all.truncate(most);
        all
    }
}

/// How many seconds a sketch tells of, in [`UNIT`]s, when it has faded so often.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span(u64);

impl Span {
    /// A span of time has passed, in microseconds, and what was counted has not faded yet.
    pub(crate) const fn pass(&mut self, micros: u64) {
        self.0 += micros.saturating_mul(UNIT) / 1_000_000;
    }

    pub(crate) const fn fade(&mut self) {
        self.0 -= self.0 / FADE;
    }

    /// A count, as so many a second.
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

    /// Keys with many that come once and few that come often, the same each time.
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
    fn counts_hold_within_their_error() {
        let mut sketches = [Sketch::default(), Sketch::default()];
        let mut seen: HashMap<Vec<u8>, u64> = HashMap::new();
        let mut total = 0;
        for (sketch, seed) in sketches.iter_mut().zip([1, 2]) {
            for key in keys(seed, 20_000) {
                sketch.add(&key, 1, None);
                *seen.entry(key).or_default() += 1;
                total += 1;
            }
        }
        let room = u64::try_from(MAX_COUNTS).unwrap();
        let top = Sketch::top(&sketches, MAX_COUNTS);
        for Count { key, count, error, .. } in &top {
            let truth = seen[&**key];
            assert!((count - error..=*count).contains(&truth), "{truth} {count} {error}");
            assert!(*error <= total / room, "{error} of {total}");
        }
        let mut often: Vec<_> = seen.iter().filter(|it| *it.1 > total / room).collect();
        often.sort_by_key(|it| std::cmp::Reverse(it.1));
        assert!(often.len() >= 20);
        for (key, _) in often {
            assert!(top.iter().any(|it| *it.key == **key), "a key that is seen often is told");
        }
        let most = top.iter().map(|it| it.error).max().unwrap_or(0);
        println!("figure: of {total} seen, the error is at most {most}; {} may be", total / room);
    }

    #[test]
    fn what_fades_is_forgotten_and_rates_stay() {
        let (mut sketch, mut span) = (Sketch::default(), Span::default());
        for _ in 0..300 {
            sketch.fade();
            span.fade();
            sketch.add(b"a", 10 * UNIT, None);
            span.pass(1_000_000);
            let top = Sketch::top(std::slice::from_ref(&sketch), 1);
            let rate = span.rate(top[0].count);
            assert!((rate - 10.0).abs() < 0.01, "{rate}");
        }
        for _ in 0..300 {
            sketch.fade();
        }
        assert!(sketch.counts.is_empty());
    }

    #[test]
    fn long_keys_are_told_by_their_front() {
        let mut sketch = Sketch::default();
        sketch.add(&[b'x'; 600], UNIT, None);
        sketch.add(&[b'x'; 700], UNIT, None);
        let top = Sketch::top(&[sketch], 9);
        let key = [b'x'; MAX_SAMPLED_KEY].into();
        assert_eq!(top, [Count { key, count: 2 * UNIT, error: 0, denier: None }]);
    }
}
