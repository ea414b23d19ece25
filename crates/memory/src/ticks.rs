//! Nanoseconds since this process first asked, from the processor's counter where it can be trusted.
//!
//! To ask the system takes longer than a decision. The processor's counter (TSC) takes a quarter of
//! that, but says neither how fast it runs nor whether it has been set back. So each thread sets it
//! against the system's monotonic clock about every millisecond, and relies on it only until then, and
//! only while it runs as fast as it did the last time: whatever becomes of the counter (a machine that
//! is moved or sleeps, a counter that stops), the time is wrong by less than that. See ADR 20.

use std::{cell::Cell, sync::OnceLock, time::Instant};

/// Ticks for which an anchor holds: a millisecond at 2.1 GHz.
const HOLDS: u64 = 1 << 21;
/// An anchor is set where the system was asked in no more ticks: nobody else had the core meanwhile.
const PROMPT: u64 = 1 << 11;
/// Nanoseconds by which the system's clock may be behind what was read here before and still be
/// the same clock.
const BEHIND: u64 = 1_000_000;
/// A system's clock is itself set right, by at most 500 millionths, so that the counter's
/// pace changes by that: twice so much (one in so many) is still the same pace.
const SAME_PACE: u64 = 1 << 9;

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::NONE) };
}

/// Nanoseconds since this process first asked. Never runs back in a thread while the system's monotonic
/// clock doesn't.
#[inline]
pub(crate) fn nanos() -> u64 {
    let Some(ticks) = counter() else { return system() };
    ANCHOR.with(|anchor| anchor.get().at(ticks).unwrap_or_else(|| anew(anchor)))
}

/// What the system says, and a new anchor if it said so promptly.
#[cold]
fn anew(anchor: &Cell<Anchor>) -> u64 {
    let (old, before) = (anchor.get(), counter());
    let nanos = system();
    if let (Some(before), Some(after), true) = (before, counter(), is_steady()) {
        let took = after.wrapping_sub(before);
        if took <= PROMPT {
            anchor.set(old.next(before.wrapping_add(took / 2), nanos));
        }
    }
    old.no_earlier(nanos)
}

/// What the system's monotonic clock says.
#[expect(clippy::disallowed_methods, reason = "where the monotonic clock is read")]
fn system() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// The processor's counter, if it has one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "an instruction that std offers only so")]
#[inline]
fn counter() -> Option<u64> {
    // SAFETY: every processor of this kind has it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// The processor's counter, if it has one.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
fn counter() -> Option<u64> {
    None
}

/// Whether the counter runs at one pace whatever the processor does, does not stop, and is the same on
/// all cores: the processor says the first two, and Linux goes by it itself only if all hold.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
fn is_steady() -> bool {
    const POWER: u32 = 0x8000_0007;
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    const BY_COUNTER: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];
    static STEADY: OnceLock<bool> = OnceLock::new();
    *STEADY.get_or_init(|| {
        let most = std::arch::x86_64::__cpuid(0x8000_0000).eax;
        let source = std::fs::read_to_string(SOURCE).unwrap_or_default();
        most >= POWER
            && std::arch::x86_64::__cpuid(POWER).edx & 1 << 8 != 0
            && BY_COUNTER.contains(&source.trim_end())
    })
}

/// Whether the counter can be trusted: it is not known how to ask here.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
fn is_steady() -> bool {
    false
}

/// What the counter and the system's clock said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    ticks: u64,
    nanos: u64,
    /// Nanoseconds a tick, times 2^32; 0 while it is not known.
    pace: u64,
    /// Ticks for which it can be relied on; 0 while the pace has been seen but once.
    holds: u64,
}

impl Anchor {
    const NONE: Self = Self::first(0, 0);

    const fn first(ticks: u64, nanos: u64) -> Self {
        Self { ticks, nanos, pace: 0, holds: 0 }
    }

    /// The time at which the counter says so, if it can be relied on for that.
    #[inline]
    fn at(self, ticks: u64) -> Option<u64> {
        let passed = ticks.wrapping_sub(self.ticks);
        (passed < self.holds).then(|| self.nanos + ((passed * self.pace) >> 32))
    }

    /// What comes after: the counter and the system's clock say so.
    fn next(self, ticks: u64, nanos: u64) -> Self {
        let passed = ticks.wrapping_sub(self.ticks);
        if passed < HOLDS && self.nanos <= nanos && self != Self::NONE {
            // Too short to tell the pace.
            return self;
        }
        let nanos = self.no_earlier(nanos);
        let Some(elapsed) = nanos.checked_sub(self.nanos).filter(|_| self != Self::NONE) else {
            return Self::first(ticks, nanos);
        };
        let pace = (u128::from(elapsed) << 32) / u128::from(passed.max(1));
        match u64::try_from(pace) {
            // Below 2^11 nanoseconds a tick, products do not overflow.
            Ok(pace) if pace > 0 && pace < 1 << 43 => {
                let same = pace.abs_diff(self.pace) <= self.pace / SAME_PACE;
                Self { ticks, nanos, pace, holds: if same { HOLDS } else { 0 } }
            }
            _ => Self::first(ticks, nanos),
        }
    }

    /// What the system's clock says, or what was read here before, if that is a little later.
    fn no_earlier(self, nanos: u64) -> u64 {
        let told = self.nanos + ((self.holds * self.pace) >> 32);
        if nanos < told && told - nanos <= BEHIND { told } else { nanos }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// An anchor at a moment, and the next ones after these spans in ticks and in nanoseconds.
    fn after(spans: &[(u64, u64)]) -> Anchor {
        let (mut anchor, mut ticks, mut nanos) = (Anchor::NONE, 7_000, 1_000);
        anchor = anchor.next(ticks, nanos);
        for (more_ticks, more_nanos) in spans {
            (ticks, nanos) = (ticks.wrapping_add(*more_ticks), nanos + more_nanos);
            anchor = anchor.next(ticks, nanos);
        }
        anchor
    }

    /// Two ticks a nanosecond, for a time that tells the pace.
    const STEP: (u64, u64) = (HOLDS, HOLDS / 2);

    #[test]
    fn a_pace_is_relied_on_when_it_has_been_seen_twice() {
        assert_eq!(after(&[]).at(7_000), None);
        assert_eq!(after(&[STEP]).at(7_000 + HOLDS), None);
        let anchor = after(&[STEP, STEP]);
        let (ticks, nanos) = (7_000 + 2 * HOLDS, 1_000 + HOLDS);
        assert_eq!(anchor.at(ticks), Some(nanos));
        assert_eq!(anchor.at(ticks + 1_000), Some(nanos + 500));
        assert_eq!(anchor.at(ticks + HOLDS - 2), Some(nanos + HOLDS / 2 - 1));
        assert_eq!(anchor.at(ticks + HOLDS), None);
        assert_eq!(anchor.at(ticks - 1), None, "a counter that ran back");
        // A second is as good as a millisecond.
        assert_eq!(after(&[(4_000_000_000, 2_000_000_000), STEP]).holds, HOLDS);
    }

    #[test]
    fn what_is_too_short_tells_nothing() {
        assert_eq!(after(&[(10, 5), (10, 500)]), after(&[]));
        assert_eq!(after(&[STEP, (10, 5)]), after(&[STEP]));
    }

    #[test]
    fn another_pace_is_not_relied_on() {
        let slower = (HOLDS, HOLDS / 2 + HOLDS / 200);
        assert_eq!(after(&[STEP, STEP, slower]).holds, 0);
        assert_eq!(after(&[STEP, STEP, slower, slower]).holds, HOLDS);
        // A machine that was stopped while its clock ran, and one whose counter was set back.
        assert_eq!(after(&[STEP, STEP, (HOLDS, 3_600_000_000_000)]).holds, 0);
        assert_eq!(after(&[STEP, STEP, (0_u64.wrapping_sub(2 * HOLDS), 5)]).pace, 0);
        let slightly = (HOLDS, HOLDS / 2 + 500);
        assert_eq!(after(&[STEP, STEP, slightly]).holds, HOLDS);
    }

    #[test]
    fn it_does_not_run_back_for_a_little() {
        let anchor = after(&[STEP, STEP]);
        let (ticks, told) = (anchor.ticks + HOLDS, anchor.nanos + HOLDS / 2);
        assert_eq!(anchor.no_earlier(told - 40), told);
        assert_eq!(anchor.next(ticks, told - 40).nanos, told);
        assert_eq!(anchor.no_earlier(told + 40), told + 40);
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let anchor = Anchor { nanos: 5 * BEHIND, ..after(&[STEP, STEP]) };
        let (ticks, told) = (anchor.ticks + HOLDS, 5 * BEHIND + HOLDS / 2);
        let back = told - BEHIND - 1;
        assert_eq!(anchor.no_earlier(back), back);
        // From then on, all is measured anew.
        assert_eq!(anchor.next(ticks, 3), Anchor::first(ticks, 3));
    }

    #[test]
    fn it_is_the_time_that_the_system_says() {
        let asked = |_: usize| {
            let (mut last, until) = (nanos(), system() + 30_000_000);
            let mut reads = 0_u64;
            while last < until {
                let (before, now, after) = (system(), nanos(), system());
                assert!(last <= now, "{now} after {last}");
                // More than anchors and paces are off by, and less than would matter.
                let room = 20_000;
                assert!(before <= now + room && now <= after + room, "{before} {now} {after}");
                (last, reads) = (now, reads + 1);
            }
            reads
        };
        thread::scope(|scope| {
            let threads = [0; 3].map(|it| scope.spawn(move || asked(it)));
            assert!(threads.into_iter().all(|it| it.join().expect("no panic") > 0));
        });
    }
}
