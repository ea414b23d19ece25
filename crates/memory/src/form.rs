//! How the state of a key is kept in the second word of a slot, by its rule.
//!
//! - Under a limit of the gcra family it is a TAT, to the tick.
//! - In a fixed window of always the same length it is when the window ends, and the units used in it:
//!
//! ```text
//! | 0 | end, rounded up to 2^b µs: 47 - b bits | units, 10 + b bits | fingerprint, low 6 bits |
//! ```
//!
//! Windows that begin with their first request may end at any microsecond (`b` is 0). On the clock they end
//! at multiples of the period, of which no two lie within `2^b` µs, as the period is longer: what was
//! rounded off is found again, and its bits count units.
//!
//! Either way the word tells, as a TAT, a time from which on the state has recovered.

use std::cmp::Ordering;

use sluicegate_core::{
    Align, Decision, Entry, FixedWindow, Gcra, Policy, Timestamp, Window, WindowTake,
};

use crate::slot::{Tat, fits};

/// How states of a rule are kept in slots.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Tat(Gcra),
    Windows(Windows),
}

/// Fixed windows of always the same length.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    limit: FixedWindow,
    /// In microseconds.
    period: u64,
    align: Align,
    /// How many bits of the time count units.
    rounded: u32,
}

/// The window that a request is take in. Times are in microseconds since the store's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    end: u64,
    used: u64,
}

impl Form {
    /// Of a policy whose everyday states all fit in slots.
    pub(crate) fn of(policy: &Policy) -> Option<Self> {
        if let Some(gcra) = policy.as_gcra() {
            return fits(drain(gcra), gcra.scale()).then_some(Self::Tat(*gcra));
        }
        Windows::of(policy.as_window()?).map(Self::Windows)
    }

    /// The longest that a state in a slot takes to recover, in microseconds, by what the slot says.
    pub(crate) fn drain(&self) -> u64 {
        match self {
            Self::Tat(gcra) => drain(gcra),
            Self::Windows(windows) => windows.drain(),
        }
    }

    /// The second word for an entry under the policy, where it fits.
    pub(crate) fn keep(&self, entry: &Entry, base: Timestamp, now: Timestamp) -> Option<Tat> {
        match self {
            // Only what requests may run up: what a charge or a borrower owes may take longer to recover
            // than the number of its rule is held for.
            Self::Tat(gcra) => {
                entry.debt(now).filter(|&debt| gcra.holds(debt))?;
                let since = u64::try_from(entry.debt(base)?).ok()?;
                if since == 0 { None } else { Tat::new(0, since, gcra.scale()) }
            }
            Self::Windows(windows) => {
                let (start, used) = entry.window()?;
                // A clock that was set back leaves windows that begin later, or in between.
                let fits = start <= now && windows.may_begin(start.as_micros());
                let end = start.as_micros() + windows.period;
                let end = end.checked_sub(base.as_micros()).filter(|_| fits)?;
                windows.write(Open { end, used })
            }
        }
    }

    /// The entry that a second word tells.
    pub(crate) fn entry(&self, policy: &Policy, state: Tat, base: Timestamp) -> Option<Entry> {
        match self {
            Self::Tat(gcra) => Entry::with_debt(policy, base, state.since_base(gcra.scale())),
            Self::Windows(windows) => {
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

impl Windows {
    fn of(limit: &FixedWindow) -> Option<Self> {
        let Window::Span { period, align } = limit.window() else { return None };
        let period = u64::try_from(period.as_micros()).ok()?;
        let rounded = match align {
            Align::First => 0,
            Align::Clock => (period / 2).ilog2(),
        };
        let windows = Self { limit: limit.clone(), period, align, rounded };
        let fits = u64::from(limit.limit()) <= Tat::most(rounded) && fits(windows.drain(), 1);
        fits.then_some(windows)
    }

    /// The word tells a time that is up to twice what is rounded off after the end.
    const fn drain(&self) -> u64 {
        self.period + (2 << self.rounded)
    }

    fn may_begin(&self, start: u64) -> bool {
        self.align == Align::First || start.is_multiple_of(self.period)
    }

    /// The window that a request at `now` is take in, `since` microseconds after the base, where `state`
    /// is what a slot says. `None` where the clock was set back: an entry tells then.
    #[inline(always)]
    pub(crate) fn open(&self, state: Option<Tat>, now: Timestamp, since: u64) -> Option<Open> {
        let kept = state.map(|state| state.window(self.rounded));
        match self.align {
            Align::Clock => {
                let end = since + (self.period - now.as_micros() % self.period);
                let until = Tat::until(end, self.rounded);
                match kept {
                    None => Some(Open { end, used: 0 }),
                    Some((kept, used)) => match kept.cmp(&until) {
                        Ordering::Less => Some(Open { end, used: 0 }),
                        Ordering::Equal => Some(Open { end, used }),
                        Ordering::Greater => None,
                    },
                }
            }
            Align::First => match kept {
                Some((end, used)) if end > since => {
                    (end - since <= self.period).then_some(Open { end, used })
                }
                _ => Some(Open { end: since + self.period, used: 0 }),
            },
        }
    }

    #[inline(always)]
    pub(crate) fn try_take(&self, open: Open, cost: u32) -> WindowTake {
        self.limit.try_take(open.used, cost)
    }

    #[inline(always)]
    pub(crate) fn decision(&self, open: Open, take: &WindowTake, since: u64) -> Decision {
        self.limit.decision(take, open.end - since)
    }

    /// The second word for a window, where it fits.
    #[inline(always)]
    pub(crate) fn write(&self, open: Open) -> Option<Tat> {
        Tat::of_window(open.end, open.used, self.rounded)
    }
}

impl Open {
    /// Whether something was take.
    #[inline(always)]
    pub(crate) fn counts(self, take: &WindowTake) -> bool {
        self.used != take.used
    }

    #[inline(always)]
    pub(crate) fn after(self, take: &WindowTake) -> Self {
        Self { used: take.used, ..self }
    }
}

/// Microseconds that a full bucket takes to drain: no state in a slot owes more.
fn drain(gcra: &Gcra) -> u64 {
    let drain = gcra.period().as_micros() * u128::from(gcra.burst());
    u64::try_from(drain.div_ceil(u128::from(gcra.limit()))).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1_700_000_000_123_457;

    fn windows(text: &str) -> (Policy, Form, Windows) {
        let policy: Policy = text.parse().expect("a policy");
        let Some(Form::Windows(windows)) = Form::of(&policy) else { panic!("{text} has no form") };
        (policy, Form::Windows(windows.clone()), windows)
    }

    #[test]
    fn a_window_is_kept_to_the_microsecond_and_to_the_unit() {
        let base = Timestamp::saturating_from_micros(BASE);
        for text in [
            "fixed-window:1023/1s",
            "fixed-window:7/366d",
            "fixed-window:200000/1ms:align=clock",
            "fixed-window:100000000/999983us:align=clock",
            "fixed-window:4000000000/1m:align=clock",
            "fixed-window:4000000000/366d:align=clock",
        ] {
            let (policy, form, windows) = windows(text);
            let most = Tat::most(windows.rounded);
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
                    let state = windows.write(Open { used, ..open }).expect("it fits");
                    assert_eq!(windows.open(Some(state), now, late), Some(Open { used, ..open }));
                    let entry = form.entry(&policy, state, base).expect("something is used");
                    let start = BASE + open.end - windows.period;
                    assert_eq!(
                        entry.window().map(|it| (it.0.as_micros(), it.1)),
                        Some((start, used))
                    );
                    assert_eq!(form.keep(&entry, base, now), Some(state));
                    // It is forgotten after it has ended, and not long after.
                    assert!(!state.has_come(open.end - 1));
                    assert!(state.has_come(open.end + windows.period + 1));
                    let after = Timestamp::saturating_from_micros(BASE + open.end);
                    let next = windows.open(Some(state), after, open.end).expect("a new window");
                    assert_eq!((next.end, next.used), (open.end + windows.period, 0));
                }
                assert_eq!(windows.write(Open { used: most + 1, ..open }), None);
                assert_eq!(windows.write(Open { used: 0, ..open }), None);
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_is_left_to_entries() {
        let (early, late) = (5_000_000, 7_000_000);
        let at = |since| Timestamp::saturating_from_micros(BASE + since);
        for text in ["fixed-window:5/1s", "fixed-window:5/1s:align=clock"] {
            let (policy, form, windows) = windows(text);
            let open = windows.open(None, at(late), late).expect("a new window");
            let state = windows.write(Open { used: 1, ..open });
            assert_eq!(windows.open(state, at(early), early), None);
            // What an entry is then set back to may not fit.
            let entry = Entry::with_window(&policy, at(late), 1).expect("something is used");
            assert_eq!(form.keep(&entry, at(0), at(early)), None);
            let fits = form.keep(&entry, at(0), at(late)).is_some();
            assert_eq!(fits, windows.align == Align::First);
        }
    }

    #[test]
    fn what_does_not_fit_has_no_form() {
        let form = |text: &str| Form::of(&text.parse().expect("a policy")).is_some();
        assert!(form("fixed-window:1023/1h") && form("fixed-window:1000000/1h:align=clock"));
        assert!(!form("fixed-window:1024/1h") && !form("fixed-window:5/month"));
        assert!(!form("sliding-log:5/1h") && !form("gcra:1/1s,gcra:5/1m"));
    }
}
