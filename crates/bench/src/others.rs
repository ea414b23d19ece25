//! The share of processor time that other processes used during a benchmark. It reduces the reliability of the
//! figures.

use std::fs;

/// Processor time used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    all: u64,
    ours: u64,
    idle: u64,
}

impl Others {
    pub(crate) fn start() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let times: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|it| it.parse().ok()).collect();
        let idle = times.iter().skip(3).take(2).sum();
        // User and system time of this process and of its children that have exited.
        let us = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self { all: times.iter().sum(), ours: ticks(&us, 4).unwrap_or(0), idle }
    }

    /// One line about the time since the start. `servers`: seconds of processor time of servers that still run.
    pub(crate) fn summary(self, servers: f64) -> String {
        let now = Self::start();
        let all = (now.all - self.all).max(1) as f64;
        let idle = now.idle.saturating_sub(self.idle) as f64;
        let ours = (now.ours - self.ours) as f64;
        let ours = ours + servers * rustix::param::clock_ticks_per_second() as f64;
        let share = (1.0 - (idle + ours) / all).clamp(0.0, 1.0) * 100.0;
        let warning = if share > 10.0 { ": THE MACHINE WAS BUSY, run again" } else { "" };
        format!("other processes took {share:.0} % of the processor time{warning}")
    }
}

/// The sum of the first `times` times in a line of `/proc/PID/stat`: user, system, and the same of
/// children that have exited.
pub(crate) fn ticks(stat: &str, times: usize) -> Option<u64> {
    // The name, in parentheses, may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut found = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    (0..times).map(|_| found.next()?.ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_process_name_with_parentheses_are_found() {
        let line = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 21 34 5 6 20 0";
        assert_eq!((ticks(line, 2), ticks(line, 4)), (Some(55), Some(66)));
        assert_eq!(ticks("7 (a) S 1", 2), None);
    }

    #[test]
    fn summary_contains_share() {
        assert!(Others::start().summary(0.0).contains(" % of the processor time"));
    }
}
