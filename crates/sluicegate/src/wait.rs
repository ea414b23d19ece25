//! Waiting: carries out the steps of a [`TakeWait`], on a task or on a thread.

use std::{sync::Arc, thread};

use sluicegate_core::{
    Answer, Operation, PreparedPolicy, Request, Store, Timestamp,
    wait::{Event, Step},
};
use sluicegate_holds::{TakeWait, WaitOptions, return_units};
use sluicegate_memory::SystemClock;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

/// A request that waits. When it is dropped, its unused reservation is refunded.
struct Reservation<'a, S: Store + ?Sized + 'static> {
    store: &'a Arc<S>,
    key: &'a [u8],
    policy: &'a PreparedPolicy,
    wait: TakeWait,
    /// A drop may run outside of the runtime.
    runtime: Option<Handle>,
}

impl<S: Store + ?Sized + 'static> Drop for Reservation<'_, S> {
    fn drop(&mut self) {
        if let Some(refund) = self.wait.cancel() {
            return_units(self.store, self.key, self.policy, refund, self.runtime.as_ref());
        }
    }
}

/// Takes `cost` units from `key` in `store` as soon as they are available.
pub(crate) async fn until_ready<S: Store + ?Sized + 'static>(
    store: &Arc<S>,
    key: &[u8],
    policy: &PreparedPolicy,
    cost: u32,
    options: WaitOptions,
) -> Result<Answer, S::Error> {
    let start = Instant::now();
    let now = || Timestamp::EPOCH + start.elapsed();
    let wait = TakeWait::new(policy.policy().clone(), cost, options);
    let runtime = Handle::try_current().ok();
    let mut reservation = Reservation { store, key, policy, wait, runtime };
    let mut event = Event::Start;
    loop {
        event = match reservation.wait.poll(now(), event) {
            Step::Apply(operation) => {
                Event::Answered(store.apply(Request::one(key, policy, operation)).await?)
            }
            Step::Observe => Event::Observed(None),
            Step::SleepUntil(until) => {
                sleep(until.since(now())).await;
                Event::Woken
            }
            Step::Done(answer) => return Ok(answer),
        };
    }
}

/// Takes `cost` units by `apply` as soon as they are available, and blocks the thread until then.
pub(crate) fn blocking_until_ready(
    policy: &PreparedPolicy,
    cost: u32,
    options: WaitOptions,
    apply: impl Fn(Operation) -> Answer,
) -> Answer {
    let clock = SystemClock::new();
    let now = || Timestamp::EPOCH + clock.uptime();
    let mut wait = TakeWait::new(policy.policy().clone(), cost, options);
    let mut event = Event::Start;
    loop {
        event = match wait.poll(now(), event) {
            Step::Apply(operation) => Event::Answered(apply(operation)),
            Step::Observe => Event::Observed(None),
            Step::SleepUntil(until) => {
                thread::sleep(until.since(now()));
                Event::Woken
            }
            Step::Done(answer) => return answer,
        };
    }
}
