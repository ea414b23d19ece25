//! Waiting for several keys: all of them pass, or none. [`MultiKeyWaiter`] decides; this module carries out its steps.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{
    KeyedTake, MultiKeyAnswer, MultiKeyOperation, PreparedPolicy, StoreError,
    wait::{MultiKeyEvent, MultiKeyStep, MultiKeyWaiter},
};
use tokio::sync::{Notify, watch};

use super::{Failure, TicketGuard, has_open_hold, reserved_bytes, size, sleep_until};
use crate::decide::Decider;

/// A request for units of several keys that may wait.
#[derive(Debug)]
pub(crate) struct WaitingTakes {
    /// The keys, with their policies and costs.
    takes: Vec<(Arc<[u8]>, PreparedPolicy, u32)>,
    waiter: MultiKeyWaiter,
}

/// The answer once all keys pass, or a denial once they cannot pass in time. It is denied immediately when `stopping`
/// turns true. The delay of a `leaky-queue` is in the answer, and is not waited for.
///
/// Dropping the future cancels the request.
pub(crate) async fn wait_all(
    decider: &Decider,
    waiting: &mut WaitingTakes,
    mut stopping: watch::Receiver<bool>,
) -> Result<MultiKeyAnswer, Failure> {
    let WaitingTakes { takes, waiter } = waiting;
    // An invalid request does not wait for its error.
    for (_, policy, cost) in &*takes {
        policy.policy().check_multi_key(waiter.operation(), *cost).map_err(StoreError::from)?;
    }
    let mut now = decider.now();
    let woken = Arc::<Notify>::default();
    let mut guard = None;
    let mut event = MultiKeyEvent::Start;
    loop {
        event = match waiter.poll(now, event) {
            MultiKeyStep::Apply => {
                let operation = waiter.operation();
                let answer = decider.decide_multi_key_queued(operation, &keyed(takes), now).await?;
                // A local answer takes no time.
                now = if decider.is_local() { now } else { decider.now() };
                MultiKeyEvent::Answered(answer)
            }
            MultiKeyStep::CheckOpen(id) => {
                let mut is_open = true;
                for (key, ..) in &*takes {
                    is_open = is_open && has_open_hold(decider, key, &id, now).await;
                }
                MultiKeyEvent::IsOpen(is_open)
            }
            MultiKeyStep::Enter { key, request } => {
                drop(guard.take());
                let (key, policy, _) = &takes[key];
                let ticket = decider.queues.enqueue(key, request, &woken)?;
                guard = Some(TicketGuard { decider, key, policy, ticket });
                MultiKeyEvent::Entered(ticket)
            }
            MultiKeyStep::Poll(ticket, event) => {
                MultiKeyEvent::Queued(decider.queues.poll(ticket, now, event))
            }
            MultiKeyStep::SleepUntil(_, then) => {
                let is_stopped = sleep_until(decider, then, now, &woken, &mut stopping).await;
                now = decider.now();
                if is_stopped { MultiKeyEvent::Stopped } else { MultiKeyEvent::Woken }
            }
            MultiKeyStep::Done(answer) => {
                // It is not the head of its queue any more, which would be woken in place of the next one.
                drop(guard.take());
                let is_allowed = answer.decision.allowed();
                decider.wake_multi_key(waiter.operation(), &keyed(takes), is_allowed);
                return Ok(answer);
            }
        };
    }
}

impl WaitingTakes {
    /// `operation` on all keys, which waits for up to `timeout`.
    pub(crate) fn new(
        takes: &[KeyedTake<'_>],
        operation: MultiKeyOperation<'_>,
        timeout: Duration,
    ) -> Self {
        let policies = takes.iter().map(|it| (it.policy.policy().clone(), it.cost));
        let waiter = MultiKeyWaiter::new(policies, operation, timeout);
        let takes = takes.iter().map(|it| (it.key.into(), it.policy.clone(), it.cost)).collect();
        Self { takes, waiter }
    }

    /// The bytes to reserve while it waits.
    pub(crate) fn reserved_bytes(&self) -> usize {
        reserved_bytes(self.takes.iter().map(|(key, policy, _)| size(key, policy)).sum())
    }

    /// The takes, as the store expects them.
    pub(crate) fn keyed(&self) -> Vec<KeyedTake<'_>> {
        keyed(&self.takes)
    }
}

fn keyed(takes: &[(Arc<[u8]>, PreparedPolicy, u32)]) -> Vec<KeyedTake<'_>> {
    takes.iter().map(|(key, policy, cost)| KeyedTake { key, policy, cost: *cost }).collect()
}
