//! What the times of its requests say about a key: the rule of thumb for people and machines.

use std::time::Duration;

/// A pause that people make: they read, type or leave.
pub const PAUSE: Duration = Duration::from_secs(10);
/// How long people do without a pause at most, and the window in which requests are counted.
pub const LONG: Duration = Duration::from_secs(600);
/// Fewest gaps that show a pace.
pub const EVEN_GAPS: u64 = 20;
/// Share of the gaps that are as long as the one before at an even pace, in per cent.
pub const EVEN_SHARE: u64 = 80;
/// How many times the requests of most keys are a volume that people do not reach.
pub const VOLUME_FACTOR: u64 = 10;
/// Fewest requests in ten minutes that count as a volume, or as an attack.
pub const ATTACK_REQUESTS: u64 = 100;

/// Requests closer together than this are one action, such as a page with its images.
const ACTION: u64 = 2_000_000;
/// Gaps that differ by up to this and a tenth are equal: many logs have whole seconds.
const TOLERANCE: u64 = 1_000_000;

/// The times of the requests of a key, summed up. All are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    requests: u64,
    last: u64,
    /// The first request since the last pause.
    active_since: u64,
    /// The longest time without a pause.
    longest: u64,
    /// The last gap between two actions; 0 before there is one.
    gap: u64,
    gaps: u64,
    even_gaps: u64,
    /// The ten minutes of the clock of the last request, and its requests.
    window: u64,
    in_window: u64,
    busiest: u64,
}

impl Profile {
    /// Of a key whose first request is at `time`, in microseconds since the Unix epoch.
    pub(crate) fn new(time: u64) -> Self {
        Self {
            requests: 1,
            last: time,
            active_since: time,
            longest: 0,
            gap: 0,
            gaps: 0,
            even_gaps: 0,
            window: time / micros(LONG),
            in_window: 1,
            busiest: 1,
        }
    }

    /// Adds a request at `time`, not before the last one.
    pub(crate) fn add(&mut self, time: u64) {
        let gap = time.saturating_sub(self.last);
        self.requests += 1;
        self.last = time;
        if gap >= micros(PAUSE) {
            self.active_since = time;
        }
        self.longest = self.longest.max(time - self.active_since);
        if gap >= ACTION {
            let is_even = gap.abs_diff(self.gap) <= TOLERANCE + self.gap / 10;
            self.even_gaps += u64::from(self.gaps > 0 && is_even);
            self.gaps += 1;
            self.gap = gap;
        }
        let window = time / micros(LONG);
        if window != self.window {
            (self.window, self.in_window) = (window, 0);
        }
        self.in_window += 1;
        self.busiest = self.busiest.max(self.in_window);
    }

    /// The number of requests.
    pub(crate) const fn requests(&self) -> u64 {
        self.requests
    }

    /// The requests in the busiest ten minutes of the clock.
    pub(crate) const fn busiest(&self) -> u64 {
        self.busiest
    }

    /// Whether the requests went on for ten minutes without a pause of ten seconds.
    pub(crate) const fn has_no_pause(&self) -> bool {
        self.longest >= micros(LONG)
    }

    /// Whether the gaps between actions are nearly equal.
    pub(crate) const fn has_even_pace(&self) -> bool {
        self.gaps >= EVEN_GAPS && self.even_gaps * 100 >= (self.gaps - 1) * EVEN_SHARE
    }
}

const fn micros(duration: Duration) -> u64 {
    // Ten minutes are far below the limit of 64 bits.
    duration.as_secs() * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    /// A round ten minutes.
    const START: u64 = 1_700_000_400 * SECOND;

    /// Of requests after those seconds.
    fn profile(seconds: impl IntoIterator<Item = u64>) -> Profile {
        let mut times = seconds.into_iter().map(|second| START + second * SECOND);
        let mut profile = Profile::new(times.next().unwrap());
        times.for_each(|time| profile.add(time));
        profile
    }

    #[test]
    fn profile_without_pause_needs_ten_minutes() {
        for (last, step, expected) in
            [(600, 1, true), (599, 1, false), (603, 9, true), (6000, 10, false)]
        {
            let found = profile((0..=last).step_by(step)).has_no_pause();
            assert_eq!(found, expected, "{last} {step}");
        }
        // A pause in the middle.
        let (before, after) = ((0..500), (510..1000));
        assert!(!profile(before.chain(after)).has_no_pause());
        assert!(!profile([0]).has_no_pause());
    }

    #[test]
    fn profile_pace_is_even_if_gaps_are_alike() {
        let paces: [(Vec<u64>, bool); 7] = [
            ((0..21).map(|it| it * 60).collect(), true),
            ((0..20).map(|it| it * 60).collect(), false),
            // Whole seconds of a gap of 2.5 s.
            ((0..40).map(|it| it * 5 / 2).collect(), true),
            // One request in twenty is missing.
            ((0..200).filter(|it| it % 20 != 0).map(|it| it * 5).collect(), true),
            // Pages with images, and pauses of different lengths.
            ((0..40).flat_map(|it| [it * it * 3, it * it * 3 + 1]).collect(), false),
            // A page that loads more after two and three seconds.
            ((0..40).flat_map(|it| [it * 60, it * 60 + 2, it * 60 + 5]).collect(), false),
            // Without gaps there is no pace.
            ((0..300).collect(), false),
        ];
        for (seconds, expected) in paces {
            assert_eq!(profile(seconds.clone()).has_even_pace(), expected, "{seconds:?}");
        }
    }

    #[test]
    fn profile_busiest_is_of_ten_minutes_of_the_clock() {
        let profile = profile((0..50).chain(590..700));
        assert_eq!((profile.requests(), profile.busiest()), (160, 100));
    }
}
