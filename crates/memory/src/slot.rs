//! A slot: sixteen bytes that hold the state of one key under one limit.
//!
//! ```text
//! first  | fingerprint, high 48 bits | in its second bucket, 1 bit | rule, 15 bits |
//! second | 0 | TAT: whole µs since the base, 47 | ticks, 10 bits | fingerprint, low 6 bits |
//! ```
//!
//! That is the second word under a limit of the gcra family; [`form`](crate::form) tells what it is under others.
//!
//! The fingerprint is the keyed hash of the key without the ten bits that say its bucket and one of
//! four shards, so a slot in its bucket tells all 64 bits of the hash: among 10 million live keys the odds that any two
//! share one, and so a limit, are 1 to 370 000 (n²/2^65). A rule of 0 is a slot never used, and a
//! second word of 0 one that is in somebody's hands: no TAT that is kept is 0. [`LARGE`] says that
//! the second word is an index into the entries beside the table, where states live that do not fit;
//! its highest bit is then set, so that it is never taken for a TAT. Under another rule the highest bit marks a
//! state that a decision is about to replace ([`segment`](crate::segment)).

/// The rule of a slot whose state is kept beside the table.
pub(crate) const LARGE: u64 = 0x7fff;
/// The greatest number that a rule may have.
pub(crate) const MAX_RULE: u64 = LARGE - 1;

const SECOND: u64 = 0x8000;
const LOW: u64 = 0x3f;
/// The most ticks a microsecond may have for a TAT to fit.
const MAX_SCALE: u32 = 1 << 10;
/// TATs later than this many microseconds after the base do not fit.
const MAX_WHOLE: u64 = (1 << 47) - 1;
/// Times are below this, in microseconds after the base, from which a TAT fits whatever a rule
/// with a number owes: 2.2 years, after which what is new is kept beside the table.
pub(crate) const MAX_SINCE: u64 = 1 << 46;
/// Set in the second word of a slot whose state is kept beside the table.
const INDEXED: u64 = 1 << 63;

/// The bits of a hash that a slot keeps.
pub(crate) const fn fingerprint(hash: u64) -> u64 {
    hash >> 10
}

/// Set in the second word of a slot with a state while a decision replaces it: as a TAT, it is later than any,
/// so nothing is admitted by it.
const MARK: u64 = INDEXED;

/// What a slot holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

/// Whether states of a rule fit in slots that take so many microseconds to drain, in ticks of
/// `1/scale` µs.
pub(crate) const fn fits(drain: u64, scale: u32) -> bool {
    drain <= MAX_WHOLE - MAX_SINCE && scale <= MAX_SCALE
}

impl Slot {
    /// The state of the key with this hash, under the rule with this number.
    pub(crate) const fn simple(hash: u64, rule: u64, tat: Tat) -> Self {
        let fingerprint = fingerprint(hash);
        Self { first: fingerprint >> 6 << 16 | rule, second: tat.0 | (fingerprint & LOW) }
    }

    /// The state of the key with this hash is kept elsewhere, under this index.
    pub(crate) const fn large(hash: u64, index: u64) -> Self {
        let fingerprint = fingerprint(hash);
        Self {
            first: fingerprint >> 6 << 16 | LARGE,
            second: INDEXED | index << 16 | (fingerprint & LOW),
        }
    }

    /// A slot of the key with this fingerprint under this rule, in its first bucket, but for the TAT.
    #[inline(always)]
    pub(crate) const fn wanted(fingerprint: u64, rule: u64) -> Self {
        Self { first: fingerprint >> 6 << 16 | rule, second: fingerprint & LOW }
    }

    /// Whether it is a slot of this kind. Never so where it is in somebody's hands.
    #[inline(always)]
    pub(crate) const fn is(self, wanted: Self) -> bool {
        self.first == wanted.first && (self.second ^ wanted.second) & LOW == 0 && self.second != 0
    }

    /// Whether it is of the key with this fingerprint, in its first bucket or its second.
    pub(crate) const fn is_of(self, fingerprint: u64, second: bool) -> bool {
        self.is_used() && self.is(Self::wanted(fingerprint, self.rule()).placed(second))
    }

    /// Whether a decision is about to replace the state, where it is in the slot.
    #[inline(always)]
    pub(crate) const fn has_mark(self) -> bool {
        self.second & MARK != 0
    }

    /// Whether a decision is about to replace the state.
    pub(crate) const fn is_marked(self) -> bool {
        self.has_mark() && self.rule() != LARGE
    }

    /// The second word with the mark of a decision that is about to replace the state.
    #[inline(always)]
    pub(crate) const fn marked(self) -> u64 {
        self.second | MARK
    }

    /// The same slot without that mark: its state is the one that is still to be replaced.
    pub(crate) const fn unmarked(self) -> Self {
        let mark = if self.is_marked() { MARK } else { 0 };
        Self { first: self.first, second: self.second & !mark }
    }

    pub(crate) const fn is_used(self) -> bool {
        self.rule() != 0
    }

    pub(crate) const fn rule(self) -> u64 {
        self.first & LARGE
    }

    pub(crate) const fn tat(self) -> Tat {
        Tat(self.second & !LOW)
    }

    /// The same slot with another TAT.
    #[inline(always)]
    pub(crate) const fn at(self, tat: Tat) -> Self {
        Self { first: self.first, second: tat.0 | self.second & LOW }
    }

    pub(crate) const fn index(self) -> u64 {
        (self.second & !INDEXED) >> 16
    }

    pub(crate) const fn fingerprint(self) -> u64 {
        self.first >> 16 << 6 | self.second & LOW
    }

    /// The same slot, of which the state is kept elsewhere under another index.
    pub(crate) const fn moved(self, index: u64) -> Self {
        Self { first: self.first, second: INDEXED | index << 16 | self.second & LOW }
    }

    pub(crate) const fn in_second(self) -> bool {
        self.first & SECOND != 0
    }

    pub(crate) const fn placed(self, second: bool) -> Self {
        Self { first: if second { self.first | SECOND } else { self.first & !SECOND }, ..self }
    }
}

/// A theoretical arrival time, as a slot keeps it: comparable as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tat(u64);

impl Tat {
    /// As many ticks after the base.
    pub(crate) fn since_base(self, scale: u32) -> u128 {
        self.debt(0, scale).into()
    }

    /// The TAT that lies `debt` ticks of `1/scale` µs after `now`; `None` where it does not fit.
    pub(crate) fn new(now: u64, debt: u64, scale: u32) -> Option<Self> {
        let whole = now.checked_add(debt / u64::from(scale))?;
        (whole <= MAX_WHOLE && scale <= MAX_SCALE).then(|| Self::after(now, debt, scale))
    }

    /// As [`new`](Self::new), where `now` is below [`MAX_SINCE`] and the rule has a number: it fits.
    #[inline(always)]
    pub(crate) fn after(now: u64, debt: u64, scale: u32) -> Self {
        // Most rates are one unit in some whole microseconds.
        if scale == 1 {
            return Self((now + debt) << 16);
        }
        let (whole, part) = (debt / u64::from(scale), debt % u64::from(scale));
        Self((now + whole) << 16 | part << 6)
    }

    /// How many ticks it lies after `now`.
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

    /// Whether it is not later than `now`, however late that is: it has recovered then.
    pub(crate) fn has_come(self, now: u64) -> bool {
        self.debt(now, MAX_SCALE) == 0
    }

    /// When a window ends, rounded up to 2^`rounded` µs.
    #[inline(always)]
    pub(crate) const fn until(end: u64, rounded: u32) -> u64 {
        let low = (1 << rounded) - 1;
        (end + low) & !low
    }

    /// The most units of a window that fit.
    pub(crate) const fn most(rounded: u32) -> u64 {
        (1 << (10 + rounded)) - 1
    }

    /// A window that ends then, and in which so much is used; `None` where it does not fit.
    #[inline(always)]
    pub(crate) fn of_window(end: u64, used: u64, rounded: u32) -> Option<Self> {
        let until = Self::until(end, rounded);
        (until <= MAX_WHOLE && 0 < used && used <= Self::most(rounded))
            .then_some(Self(until << 16 | used << 6))
    }

    /// When the window of a state ends, rounded up, and what is used in it.
    #[inline(always)]
    pub(crate) const fn window(self, rounded: u32) -> (u64, u64) {
        (self.0 >> (16 + rounded) << rounded, self.0 >> 6 & Self::most(rounded))
    }
}
