//! For how long what is waited for of a client may last.
//!
//! A timer looks now and then whether what was pending then is pending still, and since when. So a
//! client is closed a little later than its time, by a fifth at most, and never earlier.

use std::time::Duration;

use sluicegate_core::Timestamp;

use super::progress::Progress;
use crate::TimeoutConfig;

/// How often at most, and at least, is looked.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// How often is looked in the shortest of the limits: what begins is seen so much later at most.
const LOOKS: u32 = 5;

/// Why a client is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It asks nothing, or does not finish what it began to ask.
    Idle,
    /// It does not take its replies.
    Slow,
}

/// For how long what is waited for, of one client.
#[derive(Debug)]
pub(super) struct Patience {
    /// A request whose head is not whole.
    input: Bound,
    /// A request, after the one before was answered.
    next: Bound,
    /// That the client takes something.
    output: Bound,
    /// That it takes a part of a reply, on HTTP/2: of each reply one after the other.
    reply: Bound,
}

/// How long one thing may last. A limit of zero: for ever.
#[derive(Debug)]
struct Bound {
    limit: Duration,
    seen: Option<(u64, Timestamp)>,
}

impl Patience {
    pub(super) const fn new(timeouts: &TimeoutConfig) -> Self {
        Self {
            input: Bound { limit: timeouts.input, seen: None },
            next: Bound { limit: timeouts.idle, seen: None },
            output: Bound { limit: timeouts.output, seen: None },
            reply: Bound { limit: timeouts.output, seen: None },
        }
    }

    /// When to look again, after a look at `now`: at the time at which the first may be over, and
    /// often enough to see what begins.
    pub(super) fn next_look(&self, now: Timestamp) -> Duration {
        let bounds = [&self.input, &self.next, &self.output, &self.reply];
        let limits = bounds.iter().map(|bound| bound.limit);
        let least = limits.filter(|limit| !limit.is_zero()).min();
        let step = least.map_or(LONGEST_LOOK, |least| least / LOOKS);
        let left = bounds.iter().filter_map(|bound| bound.left(now)).min();
        let left = left.unwrap_or(LONGEST_LOOK).max(Duration::from_millis(1));
        step.clamp(SHORTEST_LOOK, LONGEST_LOOK).min(left)
    }

    /// Looks. Why the client is to be closed, if it is.
    pub(super) fn look(&mut self, progress: &Progress, now: Timestamp) -> Option<Ended> {
        let stuck = progress.stuck();
        // Of the parts of replies it is the oldest that counts, whatever becomes of others.
        let oldest = progress.oldest_chunk(now);
        self.reply.seen = oldest.map(|since| (0, since));
        if self.output.is_over(stuck, now) || self.reply.is_over(oldest.map(|_| 0), now) {
            return Some(Ended::Slow);
        }
        let rests = progress.rests();
        let begun = progress.begun().filter(|_| rests);
        let next = rests.then(|| progress.requests());
        // Both are looked at: each begins when it is first seen.
        let over = [self.input.is_over(begun, now), self.next.is_over(next, now)];
        over.contains(&true).then_some(Ended::Idle)
    }
}

impl Bound {
    /// Whether `what` is there, and has been the same for longer than may be.
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

    /// How long it may last from now on; `None`: for ever, or it is not there.
    fn left(&self, now: Timestamp) -> Option<Duration> {
        let (_, since) = self.seen.filter(|_| !self.limit.is_zero())?;
        let lasted = now.as_micros().saturating_sub(since.as_micros());
        Some(self.limit.saturating_sub(Duration::from_micros(lasted)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{budgets::buffers::BufferBudget, net::web::held::ConnectionBuffers};

    fn seconds(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn what_lasts_is_over() {
        let [input, idle, output] = [30, 100, 10].map(Duration::from_secs);
        let timeouts = TimeoutConfig { input, idle, output };
        let connection = ConnectionBuffers::new(&Arc::new(BufferBudget::new(1 << 20)));
        let progress = Progress::new(connection);
        let mut patience = Patience::new(&timeouts);
        assert_eq!(patience.next_look(seconds(0)), Duration::from_secs(2));
        assert_eq!(patience.look(&progress, seconds(0)), None);
        assert_eq!(patience.look(&progress, seconds(99)), None);
        assert_eq!(patience.look(&progress, seconds(100)), Some(Ended::Idle), "nothing is asked");

        let mut patience = Patience::new(&timeouts);
        assert!(progress.read(b"G"));
        assert_eq!(patience.look(&progress, seconds(10)), None);
        assert!(progress.read(b"E"));
        assert_eq!(patience.look(&progress, seconds(39)), None);
        assert_eq!(patience.look(&progress, seconds(40)), Some(Ended::Idle), "it is not finished");
        let flight = progress.begin();
        assert_eq!(patience.look(&progress, seconds(500)), None, "it is not answered yet");
        assert!(progress.wrote(true, 1));
        assert_eq!(patience.look(&progress, seconds(501)), None);
        assert!(progress.wrote(false, 0));
        assert!(progress.wrote(true, 1));
        assert_eq!(patience.look(&progress, seconds(510)), None);
        assert_eq!(patience.look(&progress, seconds(519)), None);
        assert_eq!(patience.next_look(seconds(519)), Duration::from_secs(1), "when it is over");
        assert_eq!(patience.look(&progress, seconds(520)), Some(Ended::Slow));

        let mut patience = Patience::new(&timeouts);
        assert!(progress.wrote(false, 0));
        let (first, second) = (flight.send_chunk(), flight.send_chunk());
        assert_eq!(patience.look(&progress, seconds(530)), None);
        drop(second);
        let third = flight.send_chunk();
        assert_eq!(patience.look(&progress, seconds(539)), None);
        drop(first);
        assert_eq!(patience.look(&progress, seconds(541)), None, "another is newer");
        assert_eq!(patience.look(&progress, seconds(549)), Some(Ended::Slow), "one is not taken");
        drop(third);
        assert_eq!(patience.look(&progress, seconds(560)), None);
    }
}
