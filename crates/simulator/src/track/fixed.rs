//! The windows of a fixed window, and the units counted in each.

use sluicegate_core::{
    Align, Decision, FixedWindow, Limit, Operation, Policy, Timestamp, Window, apply, as_micros,
};

/// Maximum number of windows that are kept: a picture has no space to mark more.
const MAX_WINDOWS: usize = 32;

/// A window, and the units that were allowed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedWindow {
    /// When it begins, in microseconds since the Unix epoch.
    pub from: u64,
    /// When it ends.
    pub to: u64,
    /// Units allowed in it.
    pub units: u64,
    /// Whether it begins at a multiple of its length, and not with a request.
    pub is_on_clock: bool,
}

/// The windows of the first fixed window of a policy.
#[derive(Debug, Default)]
pub(super) struct FixedWindows {
    limit: Option<FixedWindow>,
    counted: Vec<CountedWindow>,
    is_full: bool,
}

impl FixedWindows {
    pub(super) fn set_policy(&mut self, policy: &Policy) {
        self.limit = policy.limits().iter().find_map(|limit| match limit {
            Limit::FixedWindow(limit) => Some(limit.clone()),
            _ => None,
        });
    }

    /// Counts units that are allowed at `now`, which is not before the last.
    pub(super) fn count(&mut self, now: u64, units: u64) {
        let Some(limit) = &self.limit else { return };
        if let Some(window) = self.counted.last_mut()
            && now < window.to
        {
            window.units += units;
            return;
        }
        if self.counted.len() == MAX_WINDOWS {
            self.is_full = true;
            return;
        }
        let mut window = CountedWindow { units, ..window_at(limit, now) };
        // A change of the policy may begin a window inside the last one.
        let begin = self.counted.last().map_or(0, |last| last.to);
        window.from = window.from.max(begin);
        self.counted.push(window);
    }

    /// All of them, or none if there were too many.
    pub(super) fn counted(&self) -> &[CountedWindow] {
        if self.is_full { &[] } else { &self.counted }
    }
}

/// The window that a request at `now` opens. A window of the calendar is drawn from the request on.
fn window_at(limit: &FixedWindow, now: u64) -> CountedWindow {
    let (from, is_on_clock) = match limit.window() {
        Window::Span { period, align: Align::Clock } => {
            let period = as_micros(period);
            (now - now % period.max(1), true)
        }
        Window::Span { align: Align::First, .. } | Window::Calendar { .. } => (now, false),
    };
    let time = Timestamp::saturating_from_micros(now);
    let policy = Policy::try_from(vec![Limit::FixedWindow(limit.clone())]);
    let taken = policy.ok().and_then(|it| apply(&it, &mut None, time, Operation::Take(1)).ok());
    let left = taken.map_or(0, |Decision { reset_after, .. }| as_micros(reset_after));
    let to = now.saturating_add(left);
    CountedWindow { from, to, units: 0, is_on_clock }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(policy: &str, times: &[u64]) -> Vec<(u64, u64, u64)> {
        let mut windows = FixedWindows::default();
        windows.set_policy(&policy.parse().unwrap());
        times.iter().for_each(|time| windows.count(*time, 2));
        windows.counted().iter().map(|it| (it.from, it.to, it.units)).collect()
    }

    #[test]
    fn fixed_windows_begin_on_the_clock_or_with_the_first_request() {
        let times = [5_900_000, 6_000_000, 6_100_000, 15_000_000];
        assert_eq!(
            counted("sliding-log:1/1d,fixed-window:9/2s:align=clock", &times),
            [(4_000_000, 6_000_000, 2), (6_000_000, 8_000_000, 4), (14_000_000, 16_000_000, 2)]
        );
        assert_eq!(
            counted("fixed-window:9/2s", &times),
            [(5_900_000, 7_900_000, 6), (15_000_000, 17_000_000, 2)]
        );
        let mut windows = FixedWindows::default();
        for (align, is_on_clock) in [("", false), (":align=clock", true)] {
            windows.set_policy(&format!("fixed-window:9/2s{align}").parse().unwrap());
            windows.count(if is_on_clock { 8_000_000 } else { 4_000_000 }, 1);
            assert_eq!(windows.counted().last().unwrap().is_on_clock, is_on_clock);
        }
        let day = 86_400_000_000;
        assert_eq!(counted("fixed-window:9/day", &[day + 5]), [(day + 5, 2 * day, 2)]);
        assert_eq!(counted("gcra:9/2s", &times), []);
    }

    #[test]
    fn fixed_windows_too_many_are_none() {
        let times: Vec<u64> = (0..40).map(|second| second * 1_000_000).collect();
        assert_eq!(counted("fixed-window:9/1s", &times), []);
    }
}
