//! Waiting for several keys: all of them pass, or none.
//!
//! The request waits in the queue of the key with the longest wait. When another key denies it, it moves to the end of that
//! key's queue.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, KeyedTake, MultiKeyAnswer, MultiKeyOperation, PreparedPolicy, Retry, Timestamp,
    wait::{Event, Step, WaitRequest, peeks_first},
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::{
    FREE_KEY, Failure, MAX_SLEEP, MAX_SLEEP_SHARED, TicketGuard, WaitingHold, has_open_hold,
};
use crate::{decide::Decider, stopping::stopped};

/// A request for units of several keys that may wait.
#[derive(Debug)]
pub(crate) struct WaitingTakes {
    /// The keys, with their policies and costs.
    pub(crate) takes: Vec<(Arc<[u8]>, PreparedPolicy, u32)>,
    /// The hold that is to be opened, if units are held; else they are taken.
    pub(crate) hold: Option<WaitingHold>,
    pub(crate) timeout: Duration,
}

/// The answer once all keys pass, or a denial once they cannot pass in time. It is denied immediately when `stopping`
/// turns true. The delay of a `leaky-queue` is in the answer, and is not waited for.
///
/// Dropping the future cancels the request.
pub(crate) async fn wait_all(
    decider: &Decider,
    waiting: &WaitingTakes,
    mut stopping: watch::Receiver<bool>,
) -> Result<MultiKeyAnswer, Failure> {
    let WaitingTakes { takes, timeout, .. } = waiting;
    let mut reservation = decider.buffers.reserve_nothing();
    let long: usize = takes.iter().map(|(key, ..)| key.len()).filter(|len| *len > FREE_KEY).sum();
    if long > 0 && !reservation.resize(long) {
        return Err(Failure::NoMemory);
    }
    let max_sleep = if decider.is_local() { MAX_SLEEP } else { MAX_SLEEP_SHARED };
    let mut now = decider.now();
    let deadline = now + *timeout;
    let woken = Arc::<Notify>::default();
    let mut answer = waiting.attempt(decider, now).await?;
    while !is_final(&answer) && now < deadline {
        let at = answer.key;
        let Some((key, policy, cost)) = takes.get(at) else { break };
        let request = WaitRequest::hold(policy.policy().clone(), *cost, deadline);
        let ticket = decider.queues.enqueue(key, request, &woken)?;
        let _guard = TicketGuard { decider, key, policy, ticket };
        let (mut event, mut is_asked) = (Event::Start, true);
        // In the queue of this key, until another key denies the request.
        while !is_final(&answer) && answer.key == at && now < deadline {
            event = match decider.queues.poll(ticket, now, event) {
                Step::Apply(_) => {
                    if !is_asked {
                        answer = waiting.attempt(decider, now).await?;
                    }
                    is_asked = false;
                    let Some(decision) = answer.each.get(at).copied() else { break };
                    Event::Answered(Answer { decision, source: answer.source })
                }
                Step::SleepUntil(then) => {
                    is_asked = false;
                    tokio::select! {
                        () = sleep(then.min(deadline).since(now).min(max_sleep)) => {}
                        () = woken.notified() => {}
                        () = stopped(&mut stopping) => return waiting.attempt_last(decider, answer).await,
                    }
                    now = decider.now();
                    Event::Woken
                }
                Step::Observe => Event::Observed(None),
                // The key itself allows the request, but its time is over.
                Step::Done(_) => break,
            };
        }
    }
    if answer.decision.allowed() { Ok(answer) } else { waiting.attempt_last(decider, answer).await }
}

impl WaitingTakes {
    /// `operation` on all keys, which waits for up to `timeout`.
    pub(crate) fn new(
        takes: &[KeyedTake<'_>],
        operation: MultiKeyOperation<'_>,
        timeout: Duration,
    ) -> Self {
        let takes = takes.iter().map(|it| (it.key.into(), it.policy.clone(), it.cost)).collect();
        let hold = match operation {
            MultiKeyOperation::Hold { id, ttl } => Some(WaitingHold { id: id.into(), ttl }),
            MultiKeyOperation::Take | MultiKeyOperation::Peek => None,
        };
        Self { takes, hold, timeout }
    }

    /// Takes or holds, without recording a denial.
    async fn attempt(&self, decider: &Decider, now: Timestamp) -> Result<MultiKeyAnswer, Failure> {
        if self.takes.iter().any(|(_, policy, _)| peeks_first(policy.policy())) {
            let peek = self.apply(decider, MultiKeyOperation::Peek, now).await?;
            if !peek.decision.allowed() && !self.is_repeated(decider, now).await {
                return Ok(peek);
            }
        }
        self.apply(decider, self.operation(), now).await
    }

    /// Whether a hold under its id is open on each key.
    async fn is_repeated(&self, decider: &Decider, now: Timestamp) -> bool {
        let Some(WaitingHold { id, .. }) = &self.hold else { return false };
        for (key, ..) in &self.takes {
            if !has_open_hold(decider, key, id, now).await {
                return false;
            }
        }
        true
    }

    /// The last attempt: it passes now, or is denied for good. A denial by a peek is then recorded.
    async fn attempt_last(
        &self,
        decider: &Decider,
        denial: MultiKeyAnswer,
    ) -> Result<MultiKeyAnswer, Failure> {
        let is_known = self.timeout.is_zero() || is_final(&denial);
        if is_known && !self.takes.iter().any(|it| peeks_first(it.1.policy())) {
            return Ok(denial);
        }
        self.apply(decider, self.operation(), decider.now()).await
    }

    async fn apply(
        &self,
        decider: &Decider,
        operation: MultiKeyOperation<'_>,
        now: Timestamp,
    ) -> Result<MultiKeyAnswer, Failure> {
        Ok(decider.decide_multi_key(operation, &self.keyed(), now).await?)
    }

    /// The takes, as the store expects them.
    pub(crate) fn keyed(&self) -> Vec<KeyedTake<'_>> {
        let takes = self.takes.iter();
        takes.map(|(key, policy, cost)| KeyedTake { key, policy, cost: *cost }).collect()
    }

    fn operation(&self) -> MultiKeyOperation<'_> {
        match &self.hold {
            None => MultiKeyOperation::Take,
            Some(WaitingHold { id, ttl }) => MultiKeyOperation::Hold { id, ttl: *ttl },
        }
    }
}

/// Whether waiting changes nothing: it is allowed, or never will be.
fn is_final(answer: &MultiKeyAnswer) -> bool {
    !matches!(answer.decision.retry(), Some(Retry::After(_)))
}
