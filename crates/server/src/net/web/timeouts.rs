//! Time limits for clients that do not send or read.
//!
//! A timer checks at intervals whether the activity that was pending is still pending, and since when. A
//! client is therefore closed up to a fifth of its limit late, and never early.

use std::time::Duration;

use sluicegate_core::Timestamp;

use super::activity::ConnectionActivity;
use crate::TimeoutConfig;

/// Bounds of the interval between two checks.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// Checks within the shortest limit; their distance is the largest delay.
const CHECKS_PER_LIMIT: u32 = 5;

/// Why a client is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// It sends no request, or does not complete the one that it began.
    Idle,
    /// It does not read its replies.
    Slow,
}

/// The time limits of one client.
#[derive(Debug)]
pub(super) struct Timeouts {
    /// Until the head of a request is complete.
    input: TimeLimit,
    /// Until the next request.
    next: TimeLimit,
    /// Until the client reads something.
    output: TimeLimit,
    /// Until it reads the next chunk of each reply, on HTTP/2.
    reply: TimeLimit,
}

/// A limit on how long one activity may be pending; zero: no limit.
#[derive(Debug)]
struct TimeLimit {
    limit: Duration,
    seen: Option<(u64, Timestamp)>,
}

impl Timeouts {
    pub(super) const fn new(timeouts: &TimeoutConfig) -> Self {
        Self {
            input: TimeLimit { limit: timeouts.input, seen: None },
            next: TimeLimit { limit: timeouts.idle, seen: None },
            output: TimeLimit { limit: timeouts.output, seen: None },
            reply: TimeLimit { limit: timeouts.output, seen: None },
        }
    }

    /// The time from a check at `now` to the next one: short enough to find the first limit that ends, and
    /// new activity.
    pub(super) fn next_check(&self, now: Timestamp) -> Duration {
        let bounds = [&self.input, &self.next, &self.output, &self.reply];
        let limits = bounds.iter().map(|bound| bound.limit);
        let least = limits.filter(|limit| !limit.is_zero()).min();
        let step = least.map_or(MAX_INTERVAL, |least| least / CHECKS_PER_LIMIT);
        let left = bounds.iter().filter_map(|bound| bound.left(now)).min();
        let left = left.unwrap_or(MAX_INTERVAL).max(Duration::from_millis(1));
        step.clamp(MIN_INTERVAL, MAX_INTERVAL).min(left)
    }

    /// Why the client is to be closed, if it is.
    pub(super) fn check(
        &mut self,
        activity: &ConnectionActivity,
        now: Timestamp,
    ) -> Option<CloseReason> {
        let write_blocked = activity.write_blocked();
        // The oldest unread chunk counts, whether or not others are read.
        let oldest = activity.oldest_chunk(now);
        self.reply.seen = oldest.map(|since| (0, since));
        if self.output.is_over(write_blocked, now) || self.reply.is_over(oldest.map(|_| 0), now) {
            return Some(CloseReason::Slow);
        }
        let rests = activity.rests();
        let begun = activity.begun().filter(|_| rests);
        let next = rests.then(|| activity.requests.get());
        // Both are evaluated, because each starts when it is first seen.
        let over = [self.input.is_over(begun, now), self.next.is_over(next, now)];
        over.contains(&true).then_some(CloseReason::Idle)
    }
}

impl TimeLimit {
    /// Whether `what` is present and has been the same for longer than the limit.
    fn is_over(&mut self, what: Option<u64>, now: Timestamp) -> bool {
        let Some(what) = what else {
            self.seen = None;
            return false;
        };
        let since = match self.seen {
            Some((seen, since)) if seen == what => since,
            _ => now,
        };
        self.seen = Some((what, since));
        self.left(now).is_some_and(|left| left.is_zero())
    }

    /// The time left; `None`: there is no limit, or nothing is pending.
    fn left(&self, now: Timestamp) -> Option<Duration> {
        let (_, since) = self.seen.filter(|_| !self.limit.is_zero())?;
        Some(self.limit.saturating_sub(now.since(since)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{budgets::buffers::BufferBudget, net::web::connection_bytes::ConnectionBuffers};

    fn seconds(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn time_limit_pending_for_its_length_closes_the_client() {
        let [input, idle, output] = [30, 100, 10].map(Duration::from_secs);
        let config = TimeoutConfig { input, idle, output };
        let connection = ConnectionBuffers::new(&Arc::new(BufferBudget::new(1 << 20)));
        let activity = ConnectionActivity::new(connection);
        let mut timeouts = Timeouts::new(&config);
        assert_eq!(timeouts.next_check(seconds(0)), Duration::from_secs(2));
        assert_eq!(timeouts.check(&activity, seconds(0)), None);
        assert_eq!(timeouts.check(&activity, seconds(99)), None);
        assert_eq!(
            timeouts.check(&activity, seconds(100)),
            Some(CloseReason::Idle),
            "no request is open"
        );

        let mut timeouts = Timeouts::new(&config);
        assert!(activity.read(b"G"));
        assert_eq!(timeouts.check(&activity, seconds(10)), None);
        assert!(activity.read(b"E"));
        assert_eq!(timeouts.check(&activity, seconds(39)), None);
        assert_eq!(
            timeouts.check(&activity, seconds(40)),
            Some(CloseReason::Idle),
            "it is not finished"
        );
        let guard = activity.begin();
        assert_eq!(timeouts.check(&activity, seconds(500)), None, "it is not answered yet");
        assert!(activity.wrote(true, 1));
        assert_eq!(timeouts.check(&activity, seconds(501)), None);
        assert!(activity.wrote(false, 0));
        assert!(activity.wrote(true, 1));
        assert_eq!(timeouts.check(&activity, seconds(510)), None);
        assert_eq!(timeouts.check(&activity, seconds(519)), None);
        assert_eq!(timeouts.next_check(seconds(519)), Duration::from_secs(1), "when it is over");
        assert_eq!(timeouts.check(&activity, seconds(520)), Some(CloseReason::Slow));

        let mut timeouts = Timeouts::new(&config);
        assert!(activity.wrote(false, 0));
        let (first, second) = (guard.send_chunk(), guard.send_chunk());
        assert_eq!(timeouts.check(&activity, seconds(530)), None);
        drop(second);
        let third = guard.send_chunk();
        assert_eq!(timeouts.check(&activity, seconds(539)), None);
        drop(first);
        assert_eq!(timeouts.check(&activity, seconds(541)), None, "another is newer");
        assert_eq!(
            timeouts.check(&activity, seconds(549)),
            Some(CloseReason::Slow),
            "one is not taken"
        );
        drop(third);
        assert_eq!(timeouts.check(&activity, seconds(560)), None);
    }
}
