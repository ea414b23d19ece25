//! Spans of equal length, a bounded number of them for traffic of any length.
//!
//! Each length is a multiple of the one before, and every span starts at a multiple of its length. Therefore short spans
//! can be joined into longer ones exactly.

use super::sliding::Levels;

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000 * MILLI;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Lengths of a span, in microseconds. With the longest, the whole range of times has 144 spans.
const WIDTHS: [u64; 21] = [
    MILLI,
    5 * MILLI,
    10 * MILLI,
    50 * MILLI,
    100 * MILLI,
    500 * MILLI,
    SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    30 * MINUTE,
    HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    7 * DAY,
    28 * DAY,
    364 * DAY,
];

/// Upper bound on the spans.
const MAX_BINS: u64 = 1024;

/// Adjacent spans, starting with that of the first event.
#[derive(Clone, Debug, Default)]
pub(super) struct Bins {
    /// Index of the length in `WIDTHS`.
    width: usize,
    /// Number of the first span: its start divided by the length.
    first: u64,
    bins: Vec<Bin>,
}

impl Bins {
    pub(super) fn width(&self) -> u64 {
        WIDTHS[self.width]
    }

    /// Start of the first span.
    pub(super) fn start(&self) -> u64 {
        self.first * self.width()
    }

    /// End of the last span.
    pub(super) fn end(&self) -> u64 {
        self.start() + length(&self.bins) * self.width()
    }

    pub(super) fn all(&self) -> &[Bin] {
        &self.bins
    }

    /// The span of `time`, which is created if needed. A time before the first span belongs to the first.
    pub(super) fn at(&mut self, time: u64) -> &mut Bin {
        if self.bins.is_empty() {
            self.first = time / self.width();
        }
        while time / self.width() >= self.first + MAX_BINS && self.width + 1 < WIDTHS.len() {
            self.join();
        }
        let index = (time / self.width()).saturating_sub(self.first);
        let index = usize::try_from(index).unwrap_or(0);
        if index >= self.bins.len() {
            self.bins.resize_with(index + 1, Bin::default);
        }
        &mut self.bins[index]
    }

    /// Joins spans until there are at most `most`.
    pub(super) fn join_to(&mut self, most: usize) {
        while self.bins.len() > most && self.width + 1 < WIDTHS.len() {
            self.join();
        }
    }

    /// Makes the spans at least `width` long.
    pub(super) fn join_to_width(&mut self, width: u64) {
        while self.width() < width && self.width + 1 < WIDTHS.len() {
            self.join();
        }
    }

    /// Changes to the next length.
    fn join(&mut self) {
        let ratio = WIDTHS[self.width + 1] / WIDTHS[self.width];
        let first = self.first / ratio;
        let mut joined: Vec<Bin> = Vec::new();
        for (number, bin) in (self.first..).zip(&self.bins) {
            let index = usize::try_from(number / ratio - first).unwrap_or(0);
            if index >= joined.len() {
                joined.resize_with(index + 1, Bin::default);
            }
            joined[index].join(bin);
        }
        (self.width, self.first, self.bins) = (self.width + 1, first, joined);
    }
}

fn length(bins: &[Bin]) -> u64 {
    u64::try_from(bins.len()).unwrap_or(u64::MAX)
}

/// The counts of one span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Requests.
    pub offered: u64,
    /// Allowed requests, with or without a delay.
    pub admitted: u64,
    /// Denied requests.
    pub denied: u64,
    /// Allowed requests with a delay.
    pub delayed: u64,
    /// Requests sent in this span, after their delay.
    pub sent: u64,
    /// Remaining units of the tracked key at the start of the span, and the minimum in it.
    pub left: Option<(u32, u32)>,
    /// Maximum of units that the tracked key sent in a period that ends here.
    pub levels: Levels,
}

impl Bin {
    /// Adds the counts of a later span.
    pub(super) fn join(&mut self, later: &Self) {
        self.offered += later.offered;
        self.admitted += later.admitted;
        self.denied += later.denied;
        self.delayed += later.delayed;
        self.sent += later.sent;
        self.raise(&later.levels);
        self.left = match (self.left, later.left) {
            (Some((first, least)), Some((_, other))) => Some((first, least.min(other))),
            (one, other) => one.or(other),
        };
    }

    pub(super) fn leave(&mut self, left: u32) {
        let (first, least) = self.left.unwrap_or((left, left));
        self.left = Some((first, least.min(left)));
    }

    pub(super) fn raise(&mut self, levels: &Levels) {
        for (level, other) in self.levels.iter_mut().zip(levels) {
            level.units = level.units.max(other.units);
            level.exceeds |= other.exceeds;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn widths_are_multiples_of_the_previous_one() {
        assert!(WIDTHS.windows(2).all(|pair| pair[1] % pair[0] == 0 && pair[1] > pair[0]));
        let end = sluicegate_core::Timestamp::MAX.as_micros();
        assert!(end / WIDTHS[WIDTHS.len() - 1] < MAX_BINS);
    }

    proptest! {
        #[test]
        fn bins_joined_spans_lose_nothing_and_keep_their_place(
            start in 0..1_u64 << 51,
            steps in proptest::collection::vec((0..40_u32, 0..1000_u64), 1..60),
            most in 2..100_usize,
        ) {
            let mut bins = Bins::default();
            let (mut time, mut times) = (start, Vec::new());
            for (shift, step) in steps {
                time = (time + (step << shift)).min(1 << 52);
                bins.at(time).offered += 1;
                times.push(time);
                prop_assert!(length(bins.all()) <= MAX_BINS);
            }
            bins.join_to(most);
            prop_assert!(bins.all().len() <= most.max(144));
            for (number, bin) in (0_u64..).zip(bins.all()) {
                let from = bins.start() + number * bins.width();
                let within = times.iter().filter(|it| (from..from + bins.width()).contains(it));
                prop_assert_eq!(bin.offered, u64::try_from(within.count()).unwrap());
            }
            prop_assert!(bins.start() <= times[0] && time < bins.end());
        }
    }
}
