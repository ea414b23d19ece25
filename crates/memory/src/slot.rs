//! A slot: sixteen bytes that hold the state of one key under one limit.
//!
//! ```text
//! first  | fingerprint, high 48 bits | in its second bucket, 1 bit | policy, 15 bits |
//! second | 0 | TAT: whole µs since the base, 47 | ticks, 10 bits | fingerprint, low 6 bits |
//! ```
//!
//! This is the second word under a limit of the gcra family; [`slot_codec`](crate::slot_codec) has the others.
//!
//! The fingerprint is the keyed hash of the key without the ten bits that give its bucket and one of four shards.
//! Slot and bucket together therefore give all 64 bits of the hash: among 10 million live keys, the odds that any two
//! share a hash, and therefore a limit, are 1 to 370 000 (n²/2^65). A policy number of 0 is an unused slot. A second
//! word of 0 is a slot that a writer has claimed: no stored TAT is 0. [`OVERFLOW`] means that the second word is
//! an index into the overflow entries, for states that do not fit; its highest bit is then set, so that it is never
//! read as a TAT. Under any other policy the highest bit marks a state that a decision is about to replace
//! ([`segment`](crate::segment)).

/// Policy number of a slot whose state is an overflow entry.
pub(crate) const OVERFLOW: u64 = 0x7fff;
/// The greatest number of a policy.
pub(crate) const MAX_POLICY_NUMBER: u64 = OVERFLOW - 1;

const SECOND: u64 = 0x8000;
const LOW: u64 = 0x3f;
/// Upper bound on the ticks per microsecond of a TAT that fits.
const MAX_SCALE: u32 = 1 << 10;
/// Upper bound on a TAT that fits, in microseconds after the base.
const MAX_WHOLE: u64 = (1 << 47) - 1;
/// Microseconds after the base up to which every TAT of a numbered policy fits: 2.2 years. Later states are overflow
/// entries.
pub(crate) const MAX_SINCE: u64 = 1 << 46;
/// Set in the second word of a slot whose state is an overflow entry.
const INDEXED: u64 = 1 << 63;

/// The bits of a hash that a slot stores.
pub(crate) const fn fingerprint(hash: u64) -> u64 {
    hash >> 10
}

/// Set in the second word while a decision replaces the state. As a TAT it is later than any other, so that it admits
/// nothing.
const MARK: u64 = INDEXED;

/// The contents of a slot at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

/// Whether states fit in slots that take up to `drain` microseconds to recover, in ticks of `1/scale` µs.
pub(crate) const fn fits(drain: u64, scale: u32) -> bool {
    drain <= MAX_WHOLE - MAX_SINCE && scale <= MAX_SCALE
}

impl Slot {
    /// A slot with the state of the key with this hash, under the policy with this number.
    pub(crate) const fn simple(hash: u64, policy: u64, tat: Tat) -> Self {
        debug_assert!(0 < policy && policy <= MAX_POLICY_NUMBER, "no number of a policy");
        debug_assert!(
            0 < tat.0 && tat.0 & (INDEXED | LOW) == 0,
            "a state is claimed, marked or wide"
        );
        let fingerprint = fingerprint(hash);
        Self { first: fingerprint >> 6 << 16 | policy, second: tat.0 | (fingerprint & LOW) }
    }

    /// A slot of the key with this hash whose state is the overflow entry with this index.
    pub(crate) const fn overflow(hash: u64, index: u64) -> Self {
        debug_assert!(index < 1 << 47, "an index does not fit");
        let fingerprint = fingerprint(hash);
        Self {
            first: fingerprint >> 6 << 16 | OVERFLOW,
            second: INDEXED | index << 16 | (fingerprint & LOW),
        }
    }

    /// The slot of the key with this fingerprint under this policy, in its first bucket, without its TAT.
    #[inline(always)]
    pub(crate) const fn wanted(fingerprint: u64, policy: u64) -> Self {
        Self { first: fingerprint >> 6 << 16 | policy, second: fingerprint & LOW }
    }

    /// Whether it is the slot of that key and policy. False for a claimed slot.
    #[inline(always)]
    pub(crate) const fn matches(self, wanted: Self) -> bool {
        self.first == wanted.first && (self.second ^ wanted.second) & LOW == 0 && self.second != 0
    }

    /// Whether it is a slot of the key with this fingerprint, in its first or `second` bucket.
    pub(crate) const fn is_of(self, fingerprint: u64, second: bool) -> bool {
        self.is_used()
            && self.matches(Self::wanted(fingerprint, self.policy_number()).placed(second))
    }

    /// Whether a decision is about to replace the state, if the state is in the slot.
    #[inline(always)]
    pub(crate) const fn has_mark(self) -> bool {
        self.second & MARK != 0
    }

    /// Whether a decision is about to replace the state.
    pub(crate) const fn is_marked(self) -> bool {
        self.has_mark() && self.policy_number() != OVERFLOW
    }

    /// The second word with the mark.
    #[inline(always)]
    pub(crate) const fn marked(self) -> u64 {
        self.second | MARK
    }

    /// The same slot without the mark, with the state before its replacement.
    pub(crate) const fn unmarked(self) -> Self {
        let mark = if self.is_marked() { MARK } else { 0 };
        Self { first: self.first, second: self.second & !mark }
    }

    pub(crate) const fn is_used(self) -> bool {
        self.policy_number() != 0
    }

    pub(crate) const fn policy_number(self) -> u64 {
        self.first & OVERFLOW
    }

    pub(crate) const fn tat(self) -> Tat {
        Tat(self.second & !LOW)
    }

    /// The same slot with another TAT.
    #[inline(always)]
    pub(crate) const fn with_tat(self, tat: Tat) -> Self {
        debug_assert!(self.policy_number() != OVERFLOW, "the state is an overflow entry");
        debug_assert!(
            0 < tat.0 && tat.0 & (INDEXED | LOW) == 0,
            "a state is claimed, marked or wide"
        );
        Self { first: self.first, second: tat.0 | self.second & LOW }
    }

    pub(crate) const fn index(self) -> u64 {
        (self.second & !INDEXED) >> 16
    }

    pub(crate) const fn fingerprint(self) -> u64 {
        self.first >> 16 << 6 | self.second & LOW
    }

    /// The same slot with another index of its overflow entry.
    pub(crate) const fn moved(self, index: u64) -> Self {
        debug_assert!(self.policy_number() == OVERFLOW, "only an overflow entry moves");
        Self { first: self.first, second: INDEXED | index << 16 | self.second & LOW }
    }

    pub(crate) const fn in_second(self) -> bool {
        self.first & SECOND != 0
    }

    pub(crate) const fn placed(self, second: bool) -> Self {
        Self { first: if second { self.first | SECOND } else { self.first & !SECOND }, ..self }
    }
}

/// A theoretical arrival time as a slot stores it. The order of the words is that of the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tat(u64);

impl Tat {
    /// Ticks after the base.
    pub(crate) fn since_base(self, scale: u32) -> u128 {
        self.debt(0, scale).into()
    }

    /// The TAT `debt` ticks of `1/scale` µs after `now`; `None` if it does not fit.
    pub(crate) fn new(now: u64, debt: u64, scale: u32) -> Option<Self> {
        let whole = now.checked_add(debt / u64::from(scale))?;
        (whole <= MAX_WHOLE && scale <= MAX_SCALE).then(|| Self::after(now, debt, scale))
    }

    /// As [`new`](Self::new), for `now` below [`MAX_SINCE`] and a numbered policy: it fits.
    #[inline(always)]
    pub(crate) fn after(now: u64, debt: u64, scale: u32) -> Self {
        // Most rates are one unit in some whole microseconds.
        if scale == 1 {
            return Self((now + debt) << 16);
        }
        let (whole, part) = (debt / u64::from(scale), debt % u64::from(scale));
        Self((now + whole) << 16 | part << 6)
    }

    /// Ticks by which it exceeds `now`; 0 if it does not.
    #[inline(always)]
    pub(crate) fn debt(self, now: u64, scale: u32) -> u64 {
        let (whole, part) = (self.0 >> 16, self.0 >> 6 & 0x3ff);
        match whole.checked_sub(now) {
            None => 0,
            Some(whole) if scale == 1 => whole,
            // 47 bits times 10: the ticks of a TAT that fits.
            Some(whole) => whole * u64::from(scale) + part,
        }
    }

    /// Whether it is not later than `now`, so that the state has recovered.
    pub(crate) fn has_come(self, now: u64) -> bool {
        self.debt(now, MAX_SCALE) == 0
    }

    /// The end of a window, rounded up to 2^`rounded` µs.
    #[inline(always)]
    pub(crate) const fn until(end: u64, rounded: u32) -> u64 {
        let low = (1 << rounded) - 1;
        (end + low) & !low
    }

    /// Upper bound on the units of a window that fit.
    pub(crate) const fn max_units(rounded: u32) -> u64 {
        (1 << (10 + rounded)) - 1
    }

    /// A window with this end and usage; `None` if it does not fit.
    #[inline(always)]
    pub(crate) fn of_window(end: u64, used: u64, rounded: u32) -> Option<Self> {
        let until = Self::until(end, rounded);
        (until <= MAX_WHOLE && 0 < used && used <= Self::max_units(rounded))
            .then_some(Self(until << 16 | used << 6))
    }

    /// The end of the window, rounded up, and the units used in it.
    #[inline(always)]
    pub(crate) const fn window(self, rounded: u32) -> (u64, u64) {
        (self.0 >> (16 + rounded) << rounded, self.0 >> 6 & Self::max_units(rounded))
    }
}
