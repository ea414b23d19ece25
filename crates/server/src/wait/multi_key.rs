//! Waiting for several keys: all of them pass, or none. [`MultiKeyWaiter`] decides; this module carries out its steps.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, KeyedOperation, Operation, PreparedPolicy, Request, StoreError,
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
) -> Result<Answer, Failure> {
    let WaitingTakes { takes, waiter } = waiting;
    // An invalid request does not wait for its error.
    for (_, policy, cost) in &*takes {
        let operation = waiter.operation().with_cost(*cost);
        policy.policy().check_operation(operation).map_err(StoreError::from)?;
    }
    let mut now = decider.now();
    let woken = Arc::<Notify>::default();
    let mut guard = None;
    let mut event = MultiKeyEvent::Start;
    loop {
        event = match waiter.poll(now, event) {
            MultiKeyStep::Apply => {
                let operations = keyed(takes, waiter.operation());
                let request = Request::all(&operations).map_err(StoreError::from)?;
                let answer = decider.decide_queued(request, now).await?;
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
                let operations = keyed(takes, waiter.operation());
                let answer = Ok(answer);
                decider.wake(Request::all(&operations).map_err(StoreError::from)?, &answer);
                return Ok(answer?);
            }
        };
    }
}

impl WaitingTakes {
    /// Takes or holds, which wait for up to `timeout`.
    pub(crate) fn new(operations: &[KeyedOperation<'_>], timeout: Duration) -> Self {
        let policies =
            operations.iter().map(|it| (it.policy.policy().clone(), it.operation.cost()));
        let operation = operations.first().map_or(Operation::Take(0), |it| it.operation);
        let waiter = MultiKeyWaiter::new(policies, operation, timeout);
        let take =
            |it: &KeyedOperation<'_>| (it.key.into(), it.policy.clone(), it.operation.cost());
        Self { takes: operations.iter().map(take).collect(), waiter }
    }

    /// The bytes to reserve while it waits.
    pub(crate) fn reserved_bytes(&self) -> usize {
        reserved_bytes(self.takes.iter().map(|(key, policy, _)| size(key, policy)).sum())
    }

    /// The operations, as the store expects them.
    pub(crate) fn keyed(&self) -> Vec<KeyedOperation<'_>> {
        keyed(&self.takes, self.waiter.operation())
    }
}

fn keyed<'a>(
    takes: &'a [(Arc<[u8]>, PreparedPolicy, u32)],
    operation: Operation<'a>,
) -> Vec<KeyedOperation<'a>> {
    let keyed = |(key, policy, cost): &'a (Arc<[u8]>, PreparedPolicy, u32)| KeyedOperation {
        key,
        policy,
        operation: operation.with_cost(*cost),
    };
    takes.iter().map(keyed).collect()
}
