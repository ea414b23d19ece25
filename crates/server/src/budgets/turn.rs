//! Turns of the connections of one worker: how long each may occupy it before others are served.
//!
//! A connection whose turn is over continues in the lane of its worker, which serves few connections between
//! two polls of the sockets. A client with few requests therefore waits for few long turns, however many
//! clients have many requests.
//!
//! Invariant: a connection that waits for its client, a store or the clock does not hold the lane.

use std::{cell::Cell, time::Duration};

use sluicegate_core::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Longest turn, unless a single command takes longer.
pub(crate) const TURN: Duration = Duration::from_micros(500);
/// Connections that have a turn in the lane between two polls of the sockets.
pub(crate) const LANE_TURNS: usize = 8;
/// Connections that may wait for the lane before the others read less at once and have shorter turns.
const BUSY_LANE: u32 = 64;

/// The turns of one worker.
#[derive(Debug)]
pub(crate) struct Turns {
    lane: Semaphore,
    /// Connections that wait for the lane.
    waiting: Cell<u32>,
}

/// The turn of one connection.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// Start of the turn; `None` until a batch begins.
    began: Option<Timestamp>,
    /// Right to continue in the lane.
    permit: Option<SemaphorePermit<'a>>,
}

/// Counts a connection that waits for the lane, until dropped.
struct WaitGuard<'a>(&'a Cell<u32>);

impl Default for Turns {
    fn default() -> Self {
        Self { lane: Semaphore::new(LANE_TURNS), waiting: Cell::new(0) }
    }
}

impl Turns {
    /// Whether more than [`BUSY_LANE`] connections wait for the lane: each may then use only little memory.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.waiting.get() > BUSY_LANE
    }
}

#[cfg(debug_assertions)]
impl Drop for Turns {
    fn drop(&mut self) {
        let waiting = self.waiting.get();
        assert!(
            waiting == 0 || std::thread::panicking(),
            "a connection waits for a lane that has ended"
        );
    }
}

impl<'a> Turn<'a> {
    pub(crate) const fn new(turns: &'a Turns) -> Self {
        Self { turns, began: None, permit: None }
    }

    /// Begins a turn at `now`, unless one has begun.
    #[inline]
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.began.get_or_insert(now);
    }

    /// Ends the turn, and leaves the lane.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.began = None;
        self.permit = None;
    }

    /// Whether other connections are to be served first.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.began.is_some_and(|began| now >= began + self.length())
    }

    /// Whether this turn is one in the lane.
    pub(crate) const fn is_in_lane(&self) -> bool {
        self.permit.is_some()
    }

    /// Ends the turn. `true`: the next one is in the lane, without waiting for others.
    pub(crate) fn try_lane(&mut self) -> bool {
        self.end();
        self.permit = self.turns.lane.try_acquire().ok();
        self.is_in_lane()
    }

    /// Waits for the lane, in order of arrival.
    pub(crate) async fn lane(&mut self) {
        let waiting = &self.turns.waiting;
        waiting.set(waiting.get() + 1);
        let _waits = WaitGuard(waiting);
        debug_assert!(self.permit.is_none(), "a connection waits for the lane that it holds");
        // An error is a closed semaphore, which this one never is.
        self.permit = self.turns.lane.acquire().await.ok();
    }

    /// Turns outside the lane become shorter the more connections wait, because each connection that is ready has one
    /// between two polls of the sockets.
    fn length(&self) -> Duration {
        let waiting = self.turns.waiting.get();
        if self.is_in_lane() || waiting <= BUSY_LANE { TURN } else { TURN * BUSY_LANE / waiting }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        debug_assert!(self.0.get() > 0, "a connection stops waiting twice");
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn turn_lasts_over_all_batches_until_it_is_ended() {
        let turns = Turns::default();
        let mut turn = Turn::new(&turns);
        let start = Timestamp::from_micros(1_000_000).unwrap();
        assert!(!turn.is_over(start + TURN), "it has not begun");
        turn.begin(start);
        turn.begin(start + TURN / 2);
        assert!(!turn.is_over(start + TURN / 2) && turn.is_over(start + TURN));
        turn.end();
        turn.begin(start + TURN);
        assert!(!turn.is_over(start + TURN));
    }

    #[test]
    fn turns_outside_the_lane_are_shorter_while_many_wait() {
        let turns = Turns::default();
        let start = Timestamp::from_micros(1_000_000).unwrap();
        let mut first: Vec<_> = (0..LANE_TURNS).map(|_| Turn::new(&turns)).collect();
        assert!(first.iter_mut().all(Turn::try_lane));
        let mut late: Vec<_> = (0..BUSY_LANE * 10).map(|_| Turn::new(&turns)).collect();
        assert!(!late[0].try_lane());
        let mut waits: Vec<_> = late.iter_mut().map(|turn| Box::pin(turn.lane())).collect();
        let mut context = Context::from_waker(Waker::noop());
        for wait in &mut waits {
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        assert!(turns.are_many());
        let mut other = Turn::new(&turns);
        other.begin(start);
        first[0].begin(start);
        assert!(other.is_over(start + TURN / 10) && !first[0].is_over(start + TURN / 10));
        // The lane goes to the first connection that waits, not to a later one.
        first[0].end();
        assert!(!other.try_lane());
        assert!(waits[0].as_mut().poll(&mut context).is_ready());
        waits.clear();
        assert_eq!(turns.waiting.get(), 0);
    }
}
