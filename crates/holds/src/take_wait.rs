//! Waiting until a take passes: when the next operation is sent.

use std::time::Duration;

use sluicegate_core::{
    Operation, Policy, Timestamp,
    wait::{Event, Step, WaitRequest, Waiter},
};

use crate::WaitOptions;

/// A request that waits until a take passes: a [`Waiter`] without a queue, with jitter. Its times begin with
/// [`Timestamp::EPOCH`] when the request arrives.
///
/// ```
/// use std::time::Duration;
/// use sluicegate_core::{Operation, Policy, Timestamp, apply, wait::{Event, Step}};
/// use sluicegate_holds::TakeWait;
///
/// let policy: Policy = "fixed-window:1/10s".parse()?;
/// let (mut entry, mut now) = (None, Timestamp::EPOCH);
/// let _ = apply(&policy, &mut entry, now, Operation::Take(1))?;
///
/// let mut wait = TakeWait::new(policy.clone(), 1, Duration::from_secs(60).into());
/// let mut event = Event::Start;
/// let answer = loop {
///     event = match wait.poll(now, event) {
///         Step::Apply(operation) => Event::Answered(apply(&policy, &mut entry, now, operation)?.into()),
///         Step::Observe => Event::Observed(None),
///         Step::SleepUntil(until) => {
///             now = until; // a driver sleeps here
///             Event::Woken
///         }
///         Step::Done(answer) => break answer,
///     };
/// };
/// assert!(answer.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TakeWait {
    waiter: Waiter,
    options: WaitOptions,
}

impl TakeWait {
    /// A request of `cost` units, at least 1, under `policy`.
    #[must_use]
    pub fn new(policy: Policy, cost: u32, options: WaitOptions) -> Self {
        let request = WaitRequest::take(policy, cost, Timestamp::EPOCH + options.timeout());
        Self { waiter: Waiter::alone(request), options }
    }

    /// A request that takes once, and waits only for the delay of a `leaky-queue`, without jitter.
    #[must_use]
    pub fn once(policy: Policy, cost: u32) -> Self {
        let options = WaitOptions::up_to(Duration::ZERO);
        let request = WaitRequest::take(policy, cost, Timestamp::EPOCH);
        Self { waiter: Waiter::once(request), options }
    }

    /// The next step, as [`Waiter::poll`] returns it. A sleep is longer by a random delay of the jitter, but ends at the
    /// deadline at the latest, and never before the time of a reservation.
    ///
    /// # Panics
    /// The event does not follow the last step.
    pub fn poll(&mut self, now: Timestamp, event: Event) -> Step {
        let step = self.waiter.poll(now, event);
        let Step::SleepUntil(until) = step else { return step };
        let latest = (Timestamp::EPOCH + self.options.timeout()).max(until);
        Step::SleepUntil((until + self.options.random_delay()).min(latest))
    }

    /// The operation that returns the units of an unused reservation; see [`Waiter::cancel`].
    #[must_use]
    pub fn cancel(&self) -> Option<Operation<'static>> {
        self.waiter.cancel()
    }
}
