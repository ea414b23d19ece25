//! Random numbers for tests.

/// Pseudorandom numbers from a seed (SplitMix64, after Steele, Lea and Flood, 2014), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `end`, which is not zero.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// A number from `from` to below `end`, which is greater.
    pub const fn between(&mut self, from: u64, end: u64) -> u64 {
        from + self.below(end - from)
    }
}
