//! Peak counts in sliding windows.

use std::{collections::VecDeque, time::Duration};

use sluicegate_core::as_micros;

/// Maximum number of events in any half-open interval of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPeak {
    /// The length. Two events exactly that far apart are not in the same interval.
    pub span: Duration,
    /// The maximum.
    pub count: u64,
}

/// Counts events in sliding windows of several lengths.
///
/// Memory is bounded by the number of distinct times in the longest window.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    windows: Vec<Window>,
    /// Times of the last events in order, each with its number of events; `forgotten` is the number of earlier
    /// times.
    times: VecDeque<(u64, u64)>,
    forgotten: u64,
}

#[derive(Clone, Debug)]
struct Window {
    /// In microseconds.
    span: u64,
    /// The number of the first time that is in it, counted from 0 over all.
    first: u64,
    /// The number of events in it.
    held: u64,
    most: u64,
}

impl Windows {
    pub(crate) fn new(spans: &[Duration]) -> Self {
        let mut spans: Vec<u64> = spans.iter().copied().map(as_micros).collect();
        spans.sort_unstable();
        spans.dedup();
        let window = |span| Window { span, first: 0, held: 0, most: 0 };
        let windows = spans.into_iter().map(window).collect();
        Self { windows, times: VecDeque::new(), forgotten: 0 }
    }

    /// Counts an event at `time`, which is not before the last one.
    pub(crate) fn count(&mut self, time: u64) {
        if let Some((last, count)) = self.times.back_mut()
            && *last == time
        {
            // No window has moved.
            *count += 1;
            for window in &mut self.windows {
                window.held += 1;
                window.most = window.most.max(window.held);
            }
            return;
        }
        self.times.push_back((time, 1));
        for window in &mut self.windows {
            window.held += 1;
            let index = |first: u64| usize::try_from(first - self.forgotten).ok();
            while let Some((held, count)) =
                index(window.first).and_then(|index| self.times.get(index))
                && time - held >= window.span
            {
                window.first += 1;
                window.held -= count;
            }
            window.most = window.most.max(window.held);
        }
        // The longest window is the last.
        let next = self.forgotten + length(&self.times);
        let needed = self.windows.last().map_or(next, |window| window.first);
        while self.forgotten < needed && self.times.pop_front().is_some() {
            self.forgotten += 1;
        }
    }

    /// The peak of each window, the shortest first.
    pub(crate) fn peaks(&self) -> impl Iterator<Item = WindowPeak> {
        self.windows.iter().map(|window| WindowPeak {
            span: Duration::from_micros(window.span),
            count: window.most,
        })
    }
}

fn length(times: &VecDeque<(u64, u64)>) -> u64 {
    u64::try_from(times.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn peaks(times: &[u64], spans: &[u64]) -> Vec<u64> {
        let spans: Vec<_> = spans.iter().copied().map(Duration::from_micros).collect();
        let mut windows = Windows::new(&spans);
        times.iter().for_each(|time| windows.count(*time));
        windows.peaks().map(|peak| peak.count).collect()
    }

    #[test]
    fn events_a_window_apart_are_not_in_the_same() {
        assert_eq!(peaks(&[0, 10, 20], &[10, 11]), [1, 2]);
        assert_eq!(peaks(&[], &[10]), [0]);
        assert_eq!(peaks(&[3, 3, 3], &[1]), [3]);
    }

    proptest! {
        #[test]
        fn windows_agree_with_counting_every_window(
            mut times in proptest::collection::vec(0..200_u64, 0..80),
            spans in proptest::collection::btree_set(1..90_u64, 1..5),
        ) {
            times.sort_unstable();
            let spans: Vec<u64> = spans.into_iter().collect();
            let naive = spans.iter().map(|span| {
                let within = |from: &u64| {
                    times.iter().filter(|time| (*from..from + span).contains(time)).count()
                };
                u64::try_from(times.iter().map(within).max().unwrap_or(0)).unwrap()
            });
            prop_assert_eq!(peaks(&times, &spans), naive.collect::<Vec<_>>());
        }
    }
}
