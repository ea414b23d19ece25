//! One waiting request, and when it would pass.

use std::time::Duration;

use sluicegate_core::{Entry, Operation, Outcome, Policy, Retry, Timestamp, apply};

/// A request that waits until it passes or its deadline is over.
#[derive(Clone, Debug)]
pub struct QueuedRequest {
    /// The policy to pass under.
    pub policy: Policy,
    /// Units to take.
    pub cost: u32,
    /// The last moment at which the client can use a pass.
    pub deadline: Timestamp,
}

impl AsRef<Self> for QueuedRequest {
    fn as_ref(&self) -> &Self {
        self
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
    pub(super) fn deadline(&self, request: &QueuedRequest) -> Timestamp {
        let left = request.deadline.as_micros().saturating_sub(self.local_time.as_micros());
        self.store_time + Duration::from_micros(left)
    }

    /// When `request` would pass if no other request came; `None` if never.
    pub(super) fn pass_time(&mut self, request: &QueuedRequest) -> Option<Timestamp> {
        pass_time(&mut self.entry, self.store_time, request)
    }
}

/// When `request` would pass if no other request came; `None` if never. A peek stores nothing, therefore
/// the entry stays as it is.
pub(super) fn pass_time(
    entry: &mut Option<Entry>,
    mut now: Timestamp,
    request: &QueuedRequest,
) -> Option<Timestamp> {
    // Waiting for `retry_after` is enough: the second answer is the last.
    for _ in 0..2 {
        let peek = apply(&request.policy, entry, now, Operation::Peek(request.cost)).ok()?;
        match peek.outcome {
            Outcome::Allow { .. } => return Some(now),
            Outcome::Deny { retry: Retry::After(wait) } => now = now + wait,
            Outcome::Deny { retry: Retry::Never } => return None,
        }
    }
    Some(now)
}
