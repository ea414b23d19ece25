//! A slot: sixteen bytes that hold the state of one key under one limit, and the encoding of that state by its policy.
//!
//! ```text
//! first  | fingerprint, high 48 bits | in its second bucket, 1 bit | policy, 15 bits |
//! second | 0 | TAT: whole µs since the base, 47 | ticks, 10 bits | fingerprint, low 6 bits |
//! ```
//!
//! This is the second word under a limit of the gcra family, exact to the tick. Under one fixed window of constant length
//! it holds the end of the window, and the units used in it:
//!
//! ```text
//! | 0 | end, rounded up to 2^b µs: 47 - b bits | units, 10 + b bits | fingerprint, low 6 bits |
//! ```
//!
//! Windows that begin with their first request may end at any microsecond (`b` is 0). On the clock they end
//! at multiples of the period, which is longer than `2^b` µs: the exact end can be restored from the rounded one,
//! and the bits saved count units. In both cases the word, read as a TAT, is a time after which the state has recovered.
//!
//! The fingerprint is the keyed hash of the key without the ten bits that give its bucket and one of four shards.
//! Slot and bucket together therefore give all 64 bits of the hash: among 10 million live keys, the odds that any two
//! share a hash, and therefore a limit, are 1 to 370 000 (n²/2^65). A policy number of 0 is an unused slot. A second
//! word of 0 is a slot that a writer has claimed: no stored TAT is 0. [`OVERFLOW`] means that the second word is
//! an index into the overflow entries, for states that do not fit; its highest bit is then set, so that it is never
//! read as a TAT. Under any other policy the highest bit marks a state that a decision is about to replace
//! ([`segment`](crate::segment)).

use std::cmp::Ordering;

use sluicegate_core::{
    Align, Decision, Entry, FixedWindow, Gcra, Policy, Timestamp, Window, WindowTake,
};

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

/// The low bits of a hash, as many as a `usize` has.
#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
#[inline(always)]
pub(crate) const fn narrow(bits: u64) -> usize {
    bits as usize
}

// The encoding of the state of a key, by its policy.

/// The encoding of the states of one policy.
#[derive(Clone, Debug)]
pub(crate) enum SlotCodec {
    Tat(Gcra),
    WindowCodec(WindowCodec),
}

/// The encoding of fixed windows of constant length.
#[derive(Clone, Debug)]
pub(crate) struct WindowCodec {
    limit: FixedWindow,
    /// In microseconds.
    period: u64,
    align: Align,
    /// Number of bits of the time that count units instead.
    rounded: u32,
}

/// The window of a request. Times are in microseconds since the base of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedWindow {
    end: u64,
    used: u64,
}

impl SlotCodec {
    /// The codec of a policy; `None` if its usual states may not fit in a slot.
    pub(crate) fn new(policy: &Policy) -> Option<Self> {
        if let Some(gcra) = policy.as_gcra() {
            return fits(drain(gcra), gcra.scale()).then_some(Self::Tat(*gcra));
        }
        WindowCodec::new(policy.as_window()?).map(Self::WindowCodec)
    }

    /// Upper bound on the time until an encoded state recovers, in microseconds.
    pub(crate) fn drain(&self) -> u64 {
        match self {
            Self::Tat(gcra) => drain(gcra),
            Self::WindowCodec(windows) => windows.drain(),
        }
    }

    /// The second word for an entry under the policy; `None` if it does not fit.
    pub(crate) fn encode(&self, entry: &Entry, base: Timestamp, now: Timestamp) -> Option<Tat> {
        match self {
            // Only debts up to the burst: a larger one, from a charge or a borrower, may take longer to recover than
            // the number of its policy is reserved.
            Self::Tat(gcra) => {
                entry.debt(now).filter(|&debt| gcra.is_within_burst(debt))?;
                let since = u64::try_from(entry.debt(base)?).ok()?;
                if since == 0 { None } else { Tat::new(0, since, gcra.scale()) }
            }
            Self::WindowCodec(windows) => {
                let (start, used) = entry.window()?;
                // After the clock was set back, a window may begin later than now or between two periods.
                let fits = start <= now && windows.may_begin(start.as_micros());
                let end = start.as_micros() + windows.period;
                let end = end.checked_sub(base.as_micros()).filter(|_| fits)?;
                windows.encode(PackedWindow { end, used })
            }
        }
    }

    /// The entry for a second word.
    pub(crate) fn decode(&self, policy: &Policy, state: Tat, base: Timestamp) -> Option<Entry> {
        match self {
            Self::Tat(gcra) => Entry::with_debt(policy, base, state.since_base(gcra.scale())),
            Self::WindowCodec(windows) => {
                let (until, used) = state.window(windows.rounded);
                let mut end = base.as_micros() + until;
                if windows.align == Align::Clock {
                    end = end / windows.period * windows.period;
                }
                let start = Timestamp::saturating_from_micros(end.saturating_sub(windows.period));
                Entry::with_window(policy, start, used)
            }
        }
    }
}

impl WindowCodec {
    fn new(limit: &FixedWindow) -> Option<Self> {
        let Window::Span { period, align } = limit.window() else { return None };
        let period = u64::try_from(period.as_micros()).ok()?;
        let rounded = match align {
            Align::First => 0,
            Align::Clock => (period / 2).ilog2(),
        };
        let windows = Self { limit: limit.clone(), period, align, rounded };
        let fits = u64::from(limit.limit()) <= Tat::max_units(rounded) && fits(windows.drain(), 1);
        fits.then_some(windows)
    }

    /// The word is a time up to twice the rounding after the end.
    const fn drain(&self) -> u64 {
        self.period + (2 << self.rounded)
    }

    fn may_begin(&self, start: u64) -> bool {
        self.align == Align::First || start.is_multiple_of(self.period)
    }

    /// The window of a request at `now`, `since` microseconds after the base; `state` is that of the slot. `None` if
    /// the clock was set back: the caller must use an entry then.
    #[inline(always)]
    pub(crate) fn open(
        &self,
        state: Option<Tat>,
        now: Timestamp,
        since: u64,
    ) -> Option<PackedWindow> {
        let kept = state.map(|state| state.window(self.rounded));
        match self.align {
            Align::Clock => {
                let end = since + (self.period - now.as_micros() % self.period);
                let until = Tat::until(end, self.rounded);
                match kept {
                    None => Some(PackedWindow { end, used: 0 }),
                    Some((kept, used)) => match kept.cmp(&until) {
                        Ordering::Less => Some(PackedWindow { end, used: 0 }),
                        Ordering::Equal => Some(PackedWindow { end, used }),
                        Ordering::Greater => None,
                    },
                }
            }
            Align::First => match kept {
                Some((end, used)) if end > since => {
                    (end - since <= self.period).then_some(PackedWindow { end, used })
                }
                _ => Some(PackedWindow { end: since + self.period, used: 0 }),
            },
        }
    }

    #[inline(always)]
    pub(crate) fn try_take(&self, open: PackedWindow, cost: u32) -> WindowTake {
        self.limit.try_take(open.used, cost)
    }

    #[inline(always)]
    pub(crate) fn decision(&self, open: PackedWindow, take: &WindowTake, since: u64) -> Decision {
        self.limit.decision(take, open.end - since)
    }

    /// The second word for a window; `None` if it does not fit.
    #[inline(always)]
    pub(crate) fn encode(&self, open: PackedWindow) -> Option<Tat> {
        Tat::of_window(open.end, open.used, self.rounded)
    }
}

impl PackedWindow {
    /// Whether `take` changes the units used.
    #[inline(always)]
    pub(crate) fn counts(self, take: &WindowTake) -> bool {
        self.used != take.used
    }

    #[inline(always)]
    pub(crate) fn after(self, take: &WindowTake) -> Self {
        Self { used: take.used, ..self }
    }
}

/// Microseconds until a full bucket has drained: no state in a slot owes more.
fn drain(gcra: &Gcra) -> u64 {
    let drain = gcra.period().as_micros() * u128::from(gcra.burst());
    u64::try_from(drain.div_ceil(u128::from(gcra.limit()))).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod slot_codec_tests {
    use super::*;

    const BASE: u64 = 1_700_000_000_123_457;

    fn windows(text: &str) -> (Policy, SlotCodec, WindowCodec) {
        let policy: Policy = text.parse().expect("a policy");
        let Some(SlotCodec::WindowCodec(windows)) = SlotCodec::new(&policy) else {
            panic!("{text} has no codec")
        };
        (policy, SlotCodec::WindowCodec(windows.clone()), windows)
    }

    #[test]
    fn window_codec_round_trip_is_exact() {
        let base = Timestamp::saturating_from_micros(BASE);
        for text in [
            "fixed-window:1023/1s",
            "fixed-window:7/366d",
            "fixed-window:200000/1ms:align=clock",
            "fixed-window:100000000/999983us:align=clock",
            "fixed-window:4000000000/1m:align=clock",
            "fixed-window:4000000000/366d:align=clock",
        ] {
            let (policy, codec, windows) = windows(text);
            let most = Tat::max_units(windows.rounded);
            for late in [
                0,
                1,
                windows.period - 1,
                windows.period,
                3_600_000_000,
                crate::slot::MAX_SINCE - 1,
            ] {
                let now = Timestamp::saturating_from_micros(BASE + late);
                let open = windows.open(None, now, late).expect("a new window");
                assert!(late < open.end && open.end - late <= windows.period);
                for used in [1, 2, most] {
                    let state = windows.encode(PackedWindow { used, ..open }).expect("it fits");
                    assert_eq!(
                        windows.open(Some(state), now, late),
                        Some(PackedWindow { used, ..open })
                    );
                    let entry = codec.decode(&policy, state, base).expect("something is used");
                    let start = BASE + open.end - windows.period;
                    assert_eq!(
                        entry.window().map(|it| (it.0.as_micros(), it.1)),
                        Some((start, used))
                    );
                    assert_eq!(codec.encode(&entry, base, now), Some(state));
                    // It recovers after its end, and soon after.
                    assert!(!state.has_come(open.end - 1));
                    assert!(state.has_come(open.end + windows.period + 1));
                    let after = Timestamp::saturating_from_micros(BASE + open.end);
                    let next = windows.open(Some(state), after, open.end).expect("a new window");
                    assert_eq!((next.end, next.used), (open.end + windows.period, 0));
                }
                assert_eq!(windows.encode(PackedWindow { used: most + 1, ..open }), None);
                assert_eq!(windows.encode(PackedWindow { used: 0, ..open }), None);
            }
        }
    }

    #[test]
    fn window_codec_clock_set_back_returns_none() {
        let (early, late) = (5_000_000, 7_000_000);
        let at = |since| Timestamp::saturating_from_micros(BASE + since);
        for text in ["fixed-window:5/1s", "fixed-window:5/1s:align=clock"] {
            let (policy, codec, windows) = windows(text);
            let open = windows.open(None, at(late), late).expect("a new window");
            let state = windows.encode(PackedWindow { used: 1, ..open });
            assert_eq!(windows.open(state, at(early), early), None);
            // An entry whose time was set back may not fit.
            let entry = Entry::with_window(&policy, at(late), 1).expect("something is used");
            assert_eq!(codec.encode(&entry, at(0), at(early)), None);
            let fits = codec.encode(&entry, at(0), at(late)).is_some();
            assert_eq!(fits, windows.align == Align::First);
        }
    }

    #[test]
    fn slot_codec_large_limits_return_none() {
        let codec = |text: &str| SlotCodec::new(&text.parse().expect("a policy")).is_some();
        assert!(codec("fixed-window:1023/1h") && codec("fixed-window:1000000/1h:align=clock"));
        assert!(!codec("fixed-window:1024/1h") && !codec("fixed-window:5/month"));
        assert!(!codec("sliding-log:5/1h") && !codec("gcra:1/1s,gcra:5/1m"));
    }
}
