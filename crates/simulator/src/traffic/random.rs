//! Random numbers: the same on every machine, because nothing here is a float. A library may change its generator,
//! and with it every picture of synthetic traffic.

/// SplitMix64.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A distance of a Poisson process with a mean distance of 1, in 2^-32.
    ///
    /// By comparisons alone (John von Neumann, "Various techniques used in connection with random digits", 1951):
    /// whether the length of a run of falling numbers is even or odd follows the series of e.
    pub(super) fn exponential(&mut self) -> u64 {
        let mut whole = 0;
        loop {
            let first = self.next();
            let (mut last, mut length) = (first, 1);
            loop {
                let drawn = self.next();
                if drawn > last {
                    break;
                }
                last = drawn;
                length += 1;
            }
            if length % 2 == 1 {
                return (whole << 32) + (first >> 32);
            }
            whole += 1;
        }
    }
}
