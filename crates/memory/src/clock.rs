//! The system clock. Only this file reads the wall clock and the monotonic clock (ADR 20).
//!
//! Reading the system's clock takes longer than a decision. The time stamp counter (TSC) of the processor takes a quarter
//! of that, but gives neither its rate nor whether it has been set back. Therefore each thread compares it with the
//! system's monotonic clock about every millisecond. It uses the counter only until the next comparison, and only while
//! the rate is that of the last one: whatever happens to the counter (the machine migrates or sleeps, the counter
//! stops), the error stays below a millisecond.

use std::{
    cell::Cell,
    sync::OnceLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sluicegate_core::{Clock, Timestamp};

/// The system's time, without steps: the wall clock at the start, plus the time elapsed by the monotonic clock. If the
/// time stamp counter of the processor can be trusted, it is used between readings of the monotonic clock: a reading
/// then takes about 10 ns instead of 37 ns, and is at most a few microseconds off while the counter keeps its rate.
///
/// ```
/// use sluicegate_core::Clock;
/// use sluicegate_memory::SystemClock;
///
/// let clock = SystemClock::new();
/// let earlier = clock.now();
/// assert!(earlier <= clock.now());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// The time at which it was started.
    start: Timestamp,
    /// The start in nanoseconds of [`nanos`].
    started: u64,
}

impl SystemClock {
    /// A clock that agrees with the wall clock now. A wall clock before 1970 counts as 1970.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { start: Timestamp::EPOCH + wall, started: nanos() }
    }

    /// Time since the clock was started.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        Duration::from_nanos(nanos().saturating_sub(self.started))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let micros = nanos().saturating_sub(self.started) / 1000;
        Timestamp::saturating_from_micros(self.start.as_micros().saturating_add(micros))
    }
}

/// Cycles for which an anchor is valid: a millisecond at 2.1 GHz.
const VALID_CYCLES: u64 = 1 << 21;
/// An anchor is set only if reading the system's clock took no more cycles: the thread was not interrupted.
const PROMPT: u64 = 1 << 11;
/// Nanoseconds that the system's clock may be behind an earlier reading. If it is further behind, it was set
/// back.
const BEHIND: u64 = 1_000_000;
/// One part in 512: the system adjusts the rate of its clock by up to 500 parts per million, which changes the
/// measured rate of the counter. Up to twice as much still counts as the same rate.
const SAME_PACE: u64 = 1 << 9;

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::NONE) };
}

/// Nanoseconds since the first call in this process. Monotonic in each thread as long as the system's clock is.
#[inline]
pub(crate) fn nanos() -> u64 {
    let Some(cycles) = counter() else { return system() };
    ANCHOR.with(|anchor| anchor.get().at(cycles).unwrap_or_else(|| refresh_anchor(anchor)))
}

/// Reads the system's clock, and sets a new anchor if that was quick.
#[cold]
fn refresh_anchor(anchor: &Cell<Anchor>) -> u64 {
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

/// Nanoseconds by the system's monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
fn system() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// The processor's counter, if it has one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "std offers this instruction only as an unsafe function")]
#[inline]
fn counter() -> Option<u64> {
    // SAFETY: every x86-64 processor has it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// The processor's counter, if it has one.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
fn counter() -> Option<u64> {
    None
}

/// Whether the counter has a constant rate, does not stop, and is synchronised between cores. The processor reports
/// the first two; Linux uses the counter for its own clock only if all three hold.
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

/// Whether the counter can be trusted: unknown on this platform.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
fn is_steady() -> bool {
    false
}

/// A reading of the counter and of the system's clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    cycles: u64,
    nanos: u64,
    /// Nanoseconds per cycle, times 2^32; 0 if unknown.
    pace: u64,
    /// Cycles for which the anchor is valid; 0 until two measurements of the rate agree.
    valid_for: u64,
}

impl Anchor {
    const NONE: Self = Self::first(0, 0);

    const fn first(cycles: u64, nanos: u64) -> Self {
        Self { cycles, nanos, pace: 0, valid_for: 0 }
    }

    /// The time at this reading of the counter, if the anchor is valid for it.
    #[inline]
    fn at(self, cycles: u64) -> Option<u64> {
        let passed = cycles.wrapping_sub(self.cycles);
        (passed < self.valid_for).then(|| self.nanos + ((passed * self.pace) >> 32))
    }

    /// The next anchor, for a reading of the counter and of the system's clock.
    fn next(self, cycles: u64, nanos: u64) -> Self {
        let passed = cycles.wrapping_sub(self.cycles);
        if passed < VALID_CYCLES && self.nanos <= nanos && self != Self::NONE {
            // Too short to measure the rate.
            return self;
        }
        let nanos = self.no_earlier(nanos);
        let Some(elapsed) = nanos.checked_sub(self.nanos).filter(|_| self != Self::NONE) else {
            return Self::first(cycles, nanos);
        };
        let pace = (u128::from(elapsed) << 32) / u128::from(passed.max(1));
        match u64::try_from(pace) {
            // Below 2^11 nanoseconds a cycle, products do not overflow.
            Ok(pace) if pace > 0 && pace < 1 << 43 => {
                let same = pace.abs_diff(self.pace) <= self.pace / SAME_PACE;
                Self { cycles, nanos, pace, valid_for: if same { VALID_CYCLES } else { 0 } }
            }
            _ => Self::first(cycles, nanos),
        }
    }

    /// `nanos`, or the latest time that this anchor may have given, if that is a little later.
    fn no_earlier(self, nanos: u64) -> u64 {
        let latest = self.nanos + ((self.valid_for * self.pace) >> 32);
        if nanos < latest && latest - nanos <= BEHIND { latest } else { nanos }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_agrees_with_wall_clock_and_is_monotonic() {
        let clock = SystemClock::default();
        assert!(clock.now() > Timestamp::EPOCH + Duration::from_secs(1_500_000_000));
        let times: Vec<_> = (0..1000).map(|_| clock.now()).collect();
        assert!(times.is_sorted());
    }
}

#[cfg(test)]
mod tsc_tests {
    use std::thread;

    use super::*;

    /// An anchor at a moment, and the next ones after these spans in cycles and in nanoseconds.
    fn after(spans: &[(u64, u64)]) -> Anchor {
        let (mut anchor, mut cycles, mut nanos) = (Anchor::NONE, 7_000, 1_000);
        anchor = anchor.next(cycles, nanos);
        for (more_cycles, more_nanos) in spans {
            (cycles, nanos) = (cycles.wrapping_add(*more_cycles), nanos + more_nanos);
            anchor = anchor.next(cycles, nanos);
        }
        anchor
    }

    /// Two cycles per nanosecond, for long enough to measure the rate.
    const STEP: (u64, u64) = (VALID_CYCLES, VALID_CYCLES / 2);

    #[test]
    fn anchor_rate_seen_twice_is_valid() {
        assert_eq!(after(&[]).at(7_000), None);
        assert_eq!(after(&[STEP]).at(7_000 + VALID_CYCLES), None);
        let anchor = after(&[STEP, STEP]);
        let (cycles, nanos) = (7_000 + 2 * VALID_CYCLES, 1_000 + VALID_CYCLES);
        assert_eq!(anchor.at(cycles), Some(nanos));
        assert_eq!(anchor.at(cycles + 1_000), Some(nanos + 500));
        assert_eq!(anchor.at(cycles + VALID_CYCLES - 2), Some(nanos + VALID_CYCLES / 2 - 1));
        assert_eq!(anchor.at(cycles + VALID_CYCLES), None);
        assert_eq!(anchor.at(cycles - 1), None, "a counter that ran back");
        // A second is as good as a millisecond.
        assert_eq!(after(&[(4_000_000_000, 2_000_000_000), STEP]).valid_for, VALID_CYCLES);
    }

    #[test]
    fn anchor_after_short_span_is_unchanged() {
        assert_eq!(after(&[(10, 5), (10, 500)]), after(&[]));
        assert_eq!(after(&[STEP, (10, 5)]), after(&[STEP]));
    }

    #[test]
    fn anchor_after_other_rate_is_invalid() {
        let slower = (VALID_CYCLES, VALID_CYCLES / 2 + VALID_CYCLES / 200);
        assert_eq!(after(&[STEP, STEP, slower]).valid_for, 0);
        assert_eq!(after(&[STEP, STEP, slower, slower]).valid_for, VALID_CYCLES);
        // A machine that was stopped while its clock ran, and one whose counter was set back.
        assert_eq!(after(&[STEP, STEP, (VALID_CYCLES, 3_600_000_000_000)]).valid_for, 0);
        assert_eq!(after(&[STEP, STEP, (0_u64.wrapping_sub(2 * VALID_CYCLES), 5)]).pace, 0);
        let slightly = (VALID_CYCLES, VALID_CYCLES / 2 + 500);
        assert_eq!(after(&[STEP, STEP, slightly]).valid_for, VALID_CYCLES);
    }

    #[test]
    fn anchor_system_slightly_behind_stays_monotonic() {
        let anchor = after(&[STEP, STEP]);
        let (cycles, latest) = (anchor.cycles + VALID_CYCLES, anchor.nanos + VALID_CYCLES / 2);
        assert_eq!(anchor.no_earlier(latest - 40), latest);
        assert_eq!(anchor.next(cycles, latest - 40).nanos, latest);
        assert_eq!(anchor.no_earlier(latest + 40), latest + 40);
    }

    #[test]
    fn anchor_system_set_back_is_followed() {
        let anchor = Anchor { nanos: 5 * BEHIND, ..after(&[STEP, STEP]) };
        let (cycles, latest) = (anchor.cycles + VALID_CYCLES, 5 * BEHIND + VALID_CYCLES / 2);
        let back = latest - BEHIND - 1;
        assert_eq!(anchor.no_earlier(back), back);
        // Measurement starts again from there.
        assert_eq!(anchor.next(cycles, 3), Anchor::first(cycles, 3));
    }

    #[test]
    fn nanos_in_threads_agree_with_system() {
        let read = |_: usize| {
            let (mut last, until) = (nanos(), system() + 30_000_000);
            let mut reads = 0_u64;
            while last < until {
                let (before, now, after) = (system(), nanos(), system());
                assert!(last <= now, "{now} after {last}");
                // More than anchors and paces are off by, and less than would matter.
                let tolerance = 20_000;
                assert!(
                    before <= now + tolerance && now <= after + tolerance,
                    "{before} {now} {after}"
                );
                (last, reads) = (now, reads + 1);
            }
            reads
        };
        thread::scope(|scope| {
            let threads = [0; 3].map(|it| scope.spawn(move || read(it)));
            assert!(threads.into_iter().all(|it| it.join().expect("no panic") > 0));
        });
    }
}
