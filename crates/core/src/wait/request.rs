//! A request for one key that waits, and when it would pass.

use std::fmt;

use crate::{Entry, Limit, Operation, Outcome, Policy, Retry, Timestamp, apply};

/// Upper bound in bytes on an entry that is copied into an [`ObservedEntry`].
pub const MAX_OBSERVED_ENTRY: usize = 256 * 1024;

/// Upper bound on the waiters of all keys.
pub const MAX_WAITERS: usize = 10_000;
/// Upper bound on the waiters of one key.
pub const MAX_WAITERS_OF_KEY: usize = 1_000;

/// Why no other request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// [`MAX_WAITERS`] requests wait.
    All,
    /// [`MAX_WAITERS_OF_KEY`] requests wait for this key.
    Key,
}

impl fmt::Display for QueueFull {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => {
                write!(formatter, "too many waiting requests: expected at most {MAX_WAITERS}")
            }
            Self::Key => write!(
                formatter,
                "too many waiting requests for this key: expected at most {MAX_WAITERS_OF_KEY}"
            ),
        }
    }
}

impl std::error::Error for QueueFull {}

/// Identifies a waiter. Tickets grow in the order of arrival, and none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Whether a peek comes before each take of a waiting request, because a denial is recorded (`count=all`), or
/// because an allowed request may be delayed beyond its deadline.
#[must_use]
pub fn peeks_first(policy: &Policy) -> bool {
    policy.limits().iter().any(|limit| limit.count_all() || limit.is_queue())
}

/// A request that waits until it passes or its deadline is over.
#[derive(Clone, Debug)]
pub(super) struct KeyRequest {
    /// The policy to pass under.
    pub(super) policy: Policy,
    /// Units to take; 0 is always allowed.
    pub(super) cost: u32,
    /// The last moment at which the client can use a pass.
    pub(super) deadline: Timestamp,
    /// Whether units are held: the caller then applies a hold in place of each take. A settle may let the request pass
    /// at any time, therefore nothing but its deadline denies it, unless it can never pass.
    pub(super) holds: bool,
}

#[cfg(test)]
impl KeyRequest {
    pub(super) const fn take(policy: Policy, cost: u32, deadline: Timestamp) -> Self {
        Self { policy, cost, deadline, holds: false }
    }

    pub(super) const fn hold(policy: Policy, cost: u32, deadline: Timestamp) -> Self {
        Self { policy, cost, deadline, holds: true }
    }
}

impl KeyRequest {
    /// Whether the request gets its departure at once and is not queued: all limits are of the gcra
    /// machine, and one is a queue.
    pub(super) fn departs(&self) -> bool {
        self.policy.can_reserve() && self.policy.limits().iter().any(Limit::is_queue)
    }

    /// When it would pass if no other request came; `None` if never.
    pub(super) fn pass_time(&self, entry: &mut Option<Entry>, now: Timestamp) -> Option<Timestamp> {
        self.find_pass(entry, now).map(|(at, _)| at)
    }

    /// When it would pass if no other request came, and whether it does then, or may pass later; `None` if never. A peek
    /// stores nothing, but a denied attempt migrates an entry of another policy.
    pub(super) fn find_pass(
        &self,
        entry: &mut Option<Entry>,
        mut now: Timestamp,
    ) -> Option<(Timestamp, bool)> {
        // Mostly, waiting for `retry_after` is enough, and the second answer is the last.
        for _ in 0..2 {
            let peek = apply(&self.policy, entry, now, Operation::Peek(self.cost)).ok()?;
            match peek.outcome {
                Outcome::Allow { .. } => return Some((now, true)),
                Outcome::Deny { retry: Retry::After(wait) } => {
                    self.deny(entry, now);
                    now = now + wait;
                }
                Outcome::Deny { retry: Retry::Never } => return None,
            }
        }
        Some((now, false))
    }

    /// Migrates the entry as the denied attempt of a request does that takes without a peek. Otherwise the wait that it was
    /// denied for would begin again with each later look at the entry.
    fn deny(&self, entry: &mut Option<Entry>, now: Timestamp) {
        let is_other = entry.as_ref().is_some_and(|it| !it.policy().decides_like(&self.policy));
        if is_other && !peeks_first(&self.policy) {
            // A policy of only `concurrency` limits has no take, and migrates nothing.
            let _ = apply(&self.policy, entry, now, Operation::Take(self.cost));
        }
    }
}

/// The state of a key, as it was read from the store.
#[derive(Debug)]
pub struct ObservedEntry {
    /// The state; `None` for an unused key.
    pub entry: Option<Entry>,
    /// When it was read, by the clock of the store.
    pub store_time: Timestamp,
    /// The same moment by the clock that deadlines refer to.
    pub local_time: Timestamp,
}

impl ObservedEntry {
    /// The deadline of `request` by the clock of the store.
    pub(super) fn deadline(&self, request: &KeyRequest) -> Timestamp {
        self.store_time + request.deadline.since(self.local_time)
    }

    /// A time of the store, at or after the read, by the clock that deadlines refer to.
    pub(super) fn to_local(&self, store_time: Timestamp) -> Timestamp {
        self.local_time + store_time.since(self.store_time)
    }

    /// When `request` would pass if no other request came; `None` if never.
    pub(super) fn pass_time(&mut self, request: &KeyRequest) -> Option<Timestamp> {
        request.pass_time(&mut self.entry, self.store_time)
    }
}
