//! Log lines about a node: one when it becomes unavailable, one when it answers again.
//!
//! The first outages of a flapping node have a line each; later lines are rate limited, and count the outages
//! since the previous one.

use std::time::Duration;

use sluicegate_core::Timestamp;

/// Consecutive outages with a line each.
const BURST: u32 = 20;
/// Time after which one more outage gets a line.
const REFILL: Duration = Duration::from_secs(3);

/// Outages of a node, logged or not.
#[derive(Debug)]
pub(crate) struct OutageLog {
    /// Since when the node has been unavailable.
    down_since: Option<Timestamp>,
    /// Whether that is logged.
    is_told: bool,
    /// Outages that are not logged.
    untold: u32,
    /// Outages that may be logged now.
    budget: u32,
    refilled_at: Timestamp,
}

/// A line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutageLine {
    /// The node is unavailable; `more` previous outages were not logged.
    Unavailable { more: u32 },
    /// The node answers again, after this time.
    Available { after: Duration },
    /// The node answers, and was unavailable `times` times that were not logged.
    WasUnavailable { times: u32 },
}

impl OutageLog {
    pub(crate) const fn new() -> Self {
        Self {
            down_since: None,
            is_told: false,
            untold: 0,
            budget: BURST,
            refilled_at: Timestamp::EPOCH,
        }
    }

    /// The node became unavailable, or answers again.
    pub(crate) fn change(&mut self, is_down: bool, now: Timestamp) -> Option<OutageLine> {
        let since = self.down_since.take();
        if is_down {
            self.down_since = since.or(Some(now));
            self.untold += u32::from(since.is_none());
            return self.due(now);
        }
        let after = now.since(since?);
        std::mem::take(&mut self.is_told).then_some(OutageLine::Available { after })
    }

    /// The line that may be logged now, if one was held back.
    pub(crate) fn due(&mut self, now: Timestamp) -> Option<OutageLine> {
        let periods = now.since(self.refilled_at).as_micros() / REFILL.as_micros();
        if periods > 0 {
            let periods = u32::try_from(periods).unwrap_or(u32::MAX);
            (self.budget, self.refilled_at) = (self.budget.saturating_add(periods).min(BURST), now);
        }
        if self.untold == 0 || self.budget == 0 {
            return None;
        }
        self.budget -= 1;
        let times = std::mem::take(&mut self.untold);
        self.is_told = self.down_since.is_some();
        Some(match self.is_told {
            true => OutageLine::Unavailable { more: times - 1 },
            false => OutageLine::WasUnavailable { times },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(1_000_000 + millis)
    }

    #[test]
    fn report_outage_has_one_line_each_way() {
        let mut report = OutageLog::new();
        assert_eq!(report.change(true, at(0)), Some(OutageLine::Unavailable { more: 0 }));
        assert_eq!(report.change(true, at(10)), None);
        assert_eq!(report.due(at(5000)), None);
        let after = Duration::from_millis(6000);
        assert_eq!(report.change(false, at(6000)), Some(OutageLine::Available { after }));
        assert_eq!(report.change(false, at(6001)), None);
    }

    #[test]
    fn report_flapping_node_loses_no_outage() {
        let mut report = OutageLog::new();
        let (mut reported, mut lines) = (0, 0);
        let mut add = |line: Option<OutageLine>| match line {
            Some(OutageLine::Unavailable { more }) => {
                (reported, lines) = (reported + more + 1, lines + 1)
            }
            Some(OutageLine::WasUnavailable { times }) => {
                (reported, lines) = (reported + times, lines + 1)
            }
            Some(OutageLine::Available { .. }) | None => {}
        };
        for outage in 0..200 {
            add(report.change(true, at(outage * 100)));
            add(report.change(false, at(outage * 100 + 50)));
        }
        add(report.due(at(23_000)));
        assert!(reported == 200 && lines <= 30, "{reported} outages in {lines} lines");
    }

    #[test]
    fn report_outage_that_lasts_is_told_in_the_end() {
        let mut report = OutageLog::new();
        for outage in 0..BURST {
            let now = at(u64::from(outage) * 10);
            assert!(report.change(true, now).is_some());
            assert!(report.change(false, now).is_some());
        }
        assert_eq!(report.change(true, at(300)), None);
        assert_eq!(report.due(at(3300)), Some(OutageLine::Unavailable { more: 0 }));
    }
}
