//! Scripts that run for long: all commands behind them wait, or get the reply that the server is busy.

use std::time::Duration;

use tokio::time::Instant;

/// For how long a slow script waits to be called, in milliseconds.
pub(crate) const ARMED: u64 = 1000;

/// A script that runs for long.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowScript {
    /// The next script that begins before this time is it.
    armed_until: Instant,
    span: Duration,
    /// The time after which others get the reply that the server is busy, if there is one.
    limit: Option<Duration>,
    /// When it began, and in which session.
    running: Option<(Instant, u64)>,
}

impl SlowScript {
    /// The next script within a second runs for `span`. After `limit`, if it is not zero, others get the reply that the server is
    /// busy.
    pub(super) fn new(span: Duration, limit: Duration) -> Self {
        let limit = (!limit.is_zero()).then_some(limit);
        Self {
            armed_until: Instant::now() + Duration::from_millis(ARMED),
            span,
            limit,
            running: None,
        }
    }

    /// A script runs in a session. Returns for how long, if it is the slow one.
    pub(super) fn begin(&mut self, session: u64) -> Option<Duration> {
        let now = Instant::now();
        let is_it = self.running.is_none() && now < self.armed_until;
        is_it.then(|| {
            self.running = Some((now, session));
            self.span
        })
    }

    /// Until when a session waits: before its next command, or (`replies`) before its replies.
    pub(super) fn waits_until(&self, session: u64, replies: bool) -> Option<Instant> {
        let (begin, by) = self.running?;
        let end = begin + self.span;
        match self.limit {
            _ if by == session => Some(end),
            _ if replies => None,
            Some(limit) => Some(end.min(begin + limit)),
            None => Some(end),
        }
    }

    /// Whether commands are refused because the script has been running for too long.
    pub(super) fn is_busy(&self) -> bool {
        let now = Instant::now();
        self.running
            .zip(self.limit)
            .is_some_and(|((begin, _), limit)| begin + limit <= now && now < begin + self.span)
    }
}
