//! Scripts that run for long: all commands behind them wait, or are told that the server is busy.

use std::time::Duration;

use tokio::time::Instant;

use super::server::RedisModel;

/// For how long a slow script waits to be called.
const ARMED: Duration = Duration::from_secs(1);

/// A script that runs for long.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowScript {
    /// The next script that begins before this time is it.
    armed_until: Instant,
    span: Duration,
    /// The time after which others are told that the server is busy, if there is one.
    limit: Option<Duration>,
    /// When it began, and in which session.
    running: Option<(Instant, u64)>,
}

impl RedisModel {
    /// The next script within a second runs for `span`. After `limit`, if it is not zero, others are told that the server is
    /// busy.
    pub(crate) fn slow_script(&self, span: Duration, limit: Duration) {
        let armed_until = Instant::now() + ARMED;
        let limit = (!limit.is_zero()).then_some(limit);
        self.state.lock().slow = Some(SlowScript { armed_until, span, limit, running: None });
    }

    /// A script runs in a session.
    pub(super) fn begin_script(&self, session: u64) {
        let now = Instant::now();
        if let Some(slow) = &mut self.state.lock().slow
            && slow.running.is_none()
            && now < slow.armed_until
        {
            slow.running = Some((now, session));
            self.log.add(format_args!("server: a script takes {:?}", slow.span));
            self.checks.disturbed(u64::try_from(slow.span.as_millis()).unwrap_or_default());
        }
    }

    /// Until when a session waits, because the server is paused or runs a script: before its next command, or (`replies`)
    /// before its replies.
    pub(super) fn waits_until(&self, session: u64, replies: bool) -> Instant {
        let state = self.state.lock();
        let by_script = state.slow.as_ref().and_then(|slow| {
            let (begin, by) = slow.running?;
            let end = begin + slow.span;
            match slow.limit {
                _ if by == session => Some(end),
                _ if replies => None,
                Some(limit) => Some(end.min(begin + limit)),
                None => Some(end),
            }
        });
        by_script.map_or(state.paused_until, |until| until.max(state.paused_until))
    }

    /// Whether commands are refused because a script has been running for too long.
    pub(super) fn is_busy(&self) -> bool {
        let now = Instant::now();
        let is_late = |slow: &SlowScript| {
            let running = slow.running.zip(slow.limit);
            running
                .is_some_and(|((begin, _), limit)| begin + limit <= now && now < begin + slow.span)
        };
        self.state.lock().slow.as_ref().is_some_and(is_late)
    }
}
