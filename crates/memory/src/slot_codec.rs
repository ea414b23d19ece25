//! Encoding of the state of a key in the second word of a slot, by its policy.
//!
//! - One limit of the gcra family: a TAT, exact to the tick.
//! - One fixed window of constant length: the end of the window, and the units used in it:
//!
//! ```text
//! | 0 | end, rounded up to 2^b µs: 47 - b bits | units, 10 + b bits | fingerprint, low 6 bits |
//! ```
//!
//! Windows that begin with their first request may end at any microsecond (`b` is 0). On the clock they end
//! at multiples of the period, which is longer than `2^b` µs: the exact end can be restored from the rounded one,
//! and the bits saved count units.
//!
//! In both cases the word, read as a TAT, is a time after which the state has recovered.

use std::cmp::Ordering;

use sluicegate_core::{
    Align, Decision, Entry, FixedWindow, Gcra, Policy, Timestamp, Window, WindowTake,
};

use crate::slot::{Tat, fits};

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
mod tests {
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
