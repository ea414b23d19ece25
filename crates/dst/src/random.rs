//! Random numbers from a seed.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Added for each number of a sequence (SplitMix64).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers. Clones continue the same sequence.
#[derive(Clone, Debug)]
pub(crate) struct Random(Arc<AtomicU64>);

impl Random {
    /// The sequence of `purpose` under `seed`. The draws of one purpose do not change those of another.
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        Self(Arc::new(AtomicU64::new(folded(seed, purpose))))
    }

    /// Any number.
    pub(crate) fn next(&self) -> u64 {
        mix(self.0.fetch_add(STEP, Ordering::Relaxed))
    }

    /// A number below `end`, which is at least 1.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number from `first` to `last`.
    pub(crate) fn between(&self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// Whether something happens that happens `percent` times in a hundred.
    pub(crate) fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// An index of a list of this length, which is at least 1.
    pub(crate) fn index(&self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or_default()
    }

    /// One of `items`, of which there is at least one.
    pub(crate) fn pick<'a, T>(&self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

/// Random numbers for each millisecond. They do not depend on draws before it: a run without some steps has the same delays
/// after them, so that a violation remains when steps that it does not need are left out.
#[derive(Clone, Debug)]
pub(crate) struct RandomByTime {
    start: u64,
    /// The millisecond of the last number, and how many of it were drawn before.
    last: Arc<Mutex<(u64, u64)>>,
}

impl RandomByTime {
    /// The numbers of `purpose` under `seed`.
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        Self { start: folded(seed, purpose), last: Arc::default() }
    }

    /// The next number of a millisecond.
    pub(crate) fn next(&self, millis: u64) -> u64 {
        let mut last = self.last.lock();
        *last = if last.0 == millis { (millis, last.1 + 1) } else { (millis, 0) };
        let first = mix(self.start ^ millis.wrapping_mul(STEP));
        mix(first.wrapping_add(last.1.wrapping_mul(STEP)))
    }

    /// The next number of a millisecond, below `end`, which is at least 1.
    pub(crate) fn below(&self, millis: u64, end: u64) -> u64 {
        self.next(millis) % end
    }
}

fn folded(seed: u64, purpose: &str) -> u64 {
    purpose.bytes().fold(seed, |state, byte| mix(state ^ u64::from(byte)))
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_by_time_earlier_draws_do_not_change_later_numbers() {
        let draw = |moments: &[u64]| {
            let random = RandomByTime::new(7, "link");
            moments.iter().map(|millis| random.next(*millis)).collect::<Vec<_>>()
        };
        let all = draw(&[1, 1, 4, 9, 9, 9]);
        assert_eq!(draw(&[9, 9, 9]), all[3..]);
        assert_eq!(draw(&[1, 4, 9]), [all[0], all[2], all[3]]);
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
