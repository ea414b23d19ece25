//! Bits of hashes as indexes.

/// The low bits of a hash, as many as a `usize` has.
#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
#[inline(always)]
pub(crate) const fn narrow(bits: u64) -> usize {
    bits as usize
}
