//! Picks a share of requests at random.

use std::hash::{BuildHasher as _, RandomState};

/// Picks a share of requests at random.
#[derive(Debug)]
pub(super) struct Sampler {
    /// A random number up to this picks a request. `None`: all are picked.
    threshold: Option<u64>,
}

impl Sampler {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a product below 2^64 that is not negative; the cast saturates"
    )]
    pub(super) fn new(ratio: f64) -> Self {
        let threshold = (ratio.max(0.0) * u64::MAX as f64) as u64;
        Self { threshold: (ratio < 1.0).then_some(threshold) }
    }

    pub(super) fn pick(&self) -> bool {
        // The keys of each `RandomState` differ, and the first ones of a thread are random. It needs no secrecy.
        let random = || RandomState::new().hash_one(0);
        self.threshold.is_none_or(|threshold| random() < threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_picks_the_share() {
        let picked = |ratio| {
            let sampler = Sampler::new(ratio);
            (0..100_000).filter(|_| sampler.pick()).count()
        };
        assert_eq!((picked(0.0), picked(1.0), picked(-1.0), picked(2.0)), (0, 100_000, 0, 100_000));
        let tenth = picked(0.1);
        assert!((9_000..11_000).contains(&tenth), "{tenth}");
    }
}
