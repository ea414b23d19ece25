//! Commands on one connection that have no reply yet, and whether the connection has stalled.
//!
//! A node that stops replying may execute commands later. Therefore after [`STALL`] without a reply only a `PING`
//! is sent periodically, until a reply comes. Only the commands in flight when the node stopped, and those sent
//! within [`STALL`], are executed late.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::Timestamp;
use tokio::sync::Notify;

/// Time without a reply after which commands are held back.
const STALL: Duration = Duration::from_millis(3);
/// Time between two `PING`s on a connection that has stalled.
const PING_EVERY: Duration = Duration::from_millis(5);

/// Commands on one connection that have no reply yet. Replies come in the order of commands, so the number
/// of the last one that has a reply says all.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    sent: AtomicU64,
    answered: AtomicU64,
    /// When the last reply came, or the first command was sent after all had replies; in microseconds.
    moved_at: AtomicU64,
    ping_at: AtomicU64,
    moved: Notify,
}

/// The number of a command that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandNumber(u64);

impl Flow {
    /// Counts `commands` as sent.
    pub(crate) fn send(&self, commands: usize, now: Timestamp) -> CommandNumber {
        let commands = u64::try_from(commands).unwrap_or(u64::MAX);
        let before = self.sent.fetch_add(commands, Ordering::Relaxed);
        if before <= self.answered.load(Ordering::Relaxed) {
            self.moved_at.store(now.as_micros(), Ordering::Relaxed);
        }
        CommandNumber(before + commands)
    }

    /// Records the reply to a command.
    pub(crate) fn answered(&self, CommandNumber(number): CommandNumber, now: Timestamp) {
        self.answered.fetch_max(number, Ordering::Relaxed);
        self.moved_at.store(now.as_micros(), Ordering::Relaxed);
        self.moved.notify_waiters();
    }

    /// Whether commands wait for replies that do not come.
    pub(crate) fn is_stalled(&self, now: Timestamp) -> bool {
        let moved_at = self.moved_at.load(Ordering::Relaxed);
        Self::is_past(moved_at, STALL, now)
            && self.sent.load(Ordering::Relaxed) > self.answered.load(Ordering::Relaxed)
    }

    /// Whether the caller must send a `PING`. Callers that were cancelled do not record their replies.
    pub(crate) fn pings(&self, now: Timestamp) -> bool {
        let (last, relaxed) = (self.ping_at.load(Ordering::Relaxed), Ordering::Relaxed);
        Self::is_past(last, PING_EVERY, now)
            && self.ping_at.compare_exchange(last, now.as_micros(), relaxed, relaxed).is_ok()
    }

    /// Ready when the next reply comes after this call.
    pub(crate) fn moves(&self) -> impl Future<Output = ()> + '_ {
        self.moved.notified()
    }

    fn is_past(then: u64, span: Duration, now: Timestamp) -> bool {
        u128::from(now.as_micros().saturating_sub(then)) >= span.as_micros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn flow_without_replies_is_stalled_until_one_comes() {
        let flow = Flow::default();
        assert!(!flow.is_stalled(at(1000)));
        let first = flow.send(1, at(1000));
        let second = flow.send(30, at(1002));
        assert!(!flow.is_stalled(at(1002)) && flow.is_stalled(at(1003)));
        flow.answered(first, at(1010));
        assert!(!flow.is_stalled(at(1012)) && flow.is_stalled(at(1013)));
        flow.answered(second, at(1020));
        assert!(!flow.is_stalled(at(9000)), "nothing waits for a reply");
        flow.send(1, at(9000));
        assert!(!flow.is_stalled(at(9002)), "the time begins with what was sent");
    }

    #[test]
    fn flow_pings_are_spaced() {
        let flow = Flow::default();
        assert!(flow.pings(at(1000)) && !flow.pings(at(1004)) && flow.pings(at(1005)));
    }
}
