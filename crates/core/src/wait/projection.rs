//! When the waiters of a key are expected to pass, computed a few at a time.
//!
//! A request that could not pass before its deadline, even if only the requests ahead of it came, is denied
//! on arrival. Computing that from the head of the queue for each request would let a client buy a
//! thousand decisions with one command. Therefore a projection keeps the expected times, and the state of
//! the key after the last of them, and each request continues from there.
//!
//! Invariant: an expected time is never too late, so that no request is denied that might pass. Other
//! requests of this process drop the projection of their key (`WaitQueues::invalidate`); changes that
//! another process made show in when the first waiter would pass ([`Projection::is_still_valid`]).

use std::{collections::VecDeque, time::Duration};

use super::request::{KeyRequest, ObservedEntry};
use crate::{Entry, Operation, Timestamp, apply, reached};

/// Upper bound on the bytes of all projections of a process.
pub(super) const MAX_TOTAL_BYTES: usize = 16 * 1024 * 1024;
/// Waiters that are computed for one request: including its own, at most 20 decisions.
const MAX_STEPS: usize = 5;
/// How much later than expected the first waiter may pass before the projection is dropped.
const TOLERANCE: Duration = Duration::from_millis(10);

/// The expected pass times of the first waiters of a queue, in order.
#[derive(Debug)]
pub(super) struct Projection {
    expected: VecDeque<Expected>,
    /// The state of the key after the last expected pass, and the time of that by the clock of the store.
    entry: Option<Entry>,
    at: Timestamp,
    /// Its size when it was last counted.
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The waiter passes at that time, by the clock of the store.
    Passes(Timestamp),
    /// The waiter misses its deadline, or may miss it.
    Misses,
}

impl Projection {
    pub(super) fn new(observed: &ObservedEntry) -> Self {
        let entry = observed.entry.clone();
        Self { expected: VecDeque::new(), entry, at: observed.store_time, bytes: 0 }
    }

    /// Its size in bytes, as of the last [`count_bytes`](Self::count_bytes).
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn count_bytes(&mut self) -> usize {
        let entry: usize = self.entry.iter().flat_map(Entry::allocations).sum();
        self.bytes = size_of::<Self>() + entry + self.expected.capacity() * size_of::<Expected>();
        self.bytes
    }

    /// Removes the waiter at `index`, which `passed` or left the queue. Returns whether the projection of the others
    /// is still valid.
    pub(super) fn remove(&mut self, index: usize, passed: bool) -> bool {
        reached!(ProjectedWaiterLeaves if !passed && self.expected.len() > index + 1);
        reached!(ProjectedWaiterPasses if passed && self.expected.len() > 1);
        match self.expected.remove(index) {
            Some(Expected::Passes(_)) => passed && index == 0,
            Some(Expected::Misses) => !passed,
            None => true,
        }
    }

    /// Whether the first waiter that is expected to pass would pass at that time, or little later.
    pub(super) fn is_still_valid<'a>(
        &self,
        queued: impl Iterator<Item = &'a KeyRequest>,
        observed: &mut ObservedEntry,
    ) -> bool {
        let passing =
            self.expected.iter().zip(queued).find_map(|(expected, request)| match expected {
                Expected::Passes(at) => Some((*at, request)),
                Expected::Misses => None,
            });
        let Some((at, first)) = passing else { return false };
        observed.pass_time(first).is_some_and(|fresh| fresh >= at && fresh <= at + TOLERANCE)
    }

    /// Checks the order of the expected passes.
    #[cfg(debug_assertions)]
    pub(super) fn check(&self) {
        let mut passes = self.expected.iter().filter_map(|expected| match expected {
            Expected::Passes(at) => Some(*at),
            Expected::Misses => None,
        });
        assert!(passes.clone().is_sorted(), "a waiter passes before one ahead of it");
        assert!(
            passes.next_back().is_none_or(|at| at <= self.at),
            "the state is that of an earlier pass"
        );
    }

    /// Number of waiters that are computed, from the head of the queue.
    pub(super) fn computed(&self) -> usize {
        self.expected.len()
    }

    /// Computes up to [`MAX_STEPS`] of the waiters that come `next`.
    pub(super) fn advance<'a>(
        &mut self,
        next: impl Iterator<Item = &'a KeyRequest>,
        observed: &ObservedEntry,
    ) {
        for request in next.take(MAX_STEPS) {
            let pass = request.find_pass(&mut self.entry, self.at.max(observed.store_time));
            // A waiter that passes just before its deadline may miss it: those behind it are earlier then.
            let pass = pass.filter(|(at, _)| *at + TOLERANCE <= observed.deadline(request));
            self.expected.push_back(pass.map_or(Expected::Misses, |(at, _)| Expected::Passes(at)));
            reached!(ProjectedWaiterMissesDeadline if pass.is_none());
            let Some((at, is_certain)) = pass else { continue };
            debug_assert!(at >= self.at && at >= observed.store_time, "passes go back in time");
            self.at = at;
            // Without certainty, those behind it are expected earlier: a denied take might be recorded.
            if is_certain {
                let take = Operation::Take(request.cost);
                let taken = apply(&request.policy, &mut self.entry, at, take);
                debug_assert!(taken.is_err() || taken.is_ok_and(|it| it.allowed()));
            }
        }
        #[cfg(debug_assertions)]
        self.check();
    }

    /// When `request` passes, which is the waiter at `index` or comes after all of them; `None` if never.
    pub(super) fn pass_time(
        &mut self,
        index: usize,
        request: &KeyRequest,
        observed: &mut ObservedEntry,
    ) -> Option<Timestamp> {
        match self.expected.get(index) {
            Some(Expected::Passes(at)) => Some((*at).max(observed.store_time)),
            // The state after the last computed waiter is later than this one: use the current state.
            Some(Expected::Misses) => observed.pass_time(request),
            None => request.pass_time(&mut self.entry, self.at.max(observed.store_time)),
        }
    }
}
