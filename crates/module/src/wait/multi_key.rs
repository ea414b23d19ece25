//! Clients that wait for several keys: all of them pass, or none.
//!
//! A client waits in the queue of the key that denies it, the one that takes longest. Once that key has free units
//! and another one denies, it goes to the end of that queue.

use std::{sync::Arc, time::Duration};

use sluicegate_commands::CommandError;
use sluicegate_core::{
    MultiKeyDecision, MultiKeyOperation, Retry, Timestamp,
    wait::{Event, Step, Ticket, WaitRequest, peeks_first},
};

use super::{
    client::{Client, WaitReply},
    queues::{QueueKey, WaitingClient, WaitingHold, WaitingTake, WaitingTakes, queues},
    timers::{TicketGuard, answer, arm, changed, disconnected, remove, subscribe, wake},
};
use crate::{
    api::{self, OnTimer},
    context::Context,
    options,
    policy_cache::CachedPolicy,
    state, stats,
    time::Moment,
};

/// Result of a request on arrival.
#[derive(Debug)]
pub(crate) enum WaitAllStart {
    Answered(MultiKeyDecision),
    /// The client waits.
    Waits,
    /// Too many clients wait already. Holds the error.
    Refused(String),
}

/// The progress of a request.
enum Progress {
    Sleeps(Timestamp),
    /// Another key denies it now.
    Moves(MultiKeyDecision),
    Done(MultiKeyDecision),
}

/// Takes from all keys, or lets the client wait for them.
pub(super) fn begin_all(
    context: Context<'_>,
    waiting: WaitingTakes,
    due: OnTimer,
) -> Result<WaitAllStart, CommandError> {
    let (now, waiting) = (context.now(), Arc::new(waiting));
    let no_waiting = api::FLAG_LUA | api::FLAG_MULTI | api::FLAG_DENY_BLOCKING;
    if context.flags() & no_waiting != 0 {
        let taken = waiting.apply(context, waiting.operation(), now)?;
        return Ok(waiting.answered(context, taken));
    }
    let mut taken = waiting.attempt(context, now)?;
    loop {
        if is_final(&taken) || now >= waiting.deadline {
            let taken = waiting.last(context, taken, now)?;
            return Ok(waiting.answered(context, taken));
        }
        let ticket = match enqueue(&waiting, taken.key, None, due) {
            Ok(ticket) => ticket,
            Err(full) => return Ok(WaitAllStart::Refused(full)),
        };
        // Whatever else happens, even a panic: a client that does not wait must not stay in the queue.
        let guard = TicketGuard { context, ticket };
        match waiting.run(context, ticket, (taken.key, Some(taken)), (Event::Start, now))? {
            Progress::Done(taken) => return Ok(waiting.answered(context, taken)),
            Progress::Moves(other) => taken = other,
            Progress::Sleeps(then) => {
                let client = Client::block(context, disconnected);
                queues(|queues| queues.data(ticket).map(|it| it.client = Some(client)));
                std::mem::forget(guard);
                arm(context, ticket, then.since(now));
                subscribe(context);
                return Ok(WaitAllStart::Waits);
            }
        }
    }
}

/// Decides a waiting request for several keys again.
pub(super) fn due_all(
    context: Context<'_>,
    mut ticket: Ticket,
    waiting: &Arc<WaitingTakes>,
    mut at: usize,
) {
    let now = context.now();
    let mut known = None;
    let mut event = Event::Woken;
    let Some(due) = queues(|queues| queues.data(ticket).map(|it| it.due)) else { return };
    loop {
        match waiting.run(context, ticket, (at, known.take()), (event, now)) {
            Ok(Progress::Sleeps(then)) => return arm(context, ticket, then.since(now)),
            Ok(Progress::Done(taken)) => {
                waiting.count(context, &taken);
                return answer(context, ticket, Ok(WaitReply::All(taken)));
            }
            Ok(Progress::Moves(taken)) => {
                let Some((client, _)) = remove(context, ticket) else { return };
                at = taken.key;
                match enqueue(waiting, at, client, due) {
                    Ok(entered) => ticket = entered,
                    Err(full) => {
                        if let Some(client) = client {
                            client.answer(Err(full));
                        }
                        return;
                    }
                }
                (known, event) = (Some(taken), Event::Start);
            }
            Err(error) => return answer(context, ticket, Err(error.to_string())),
        }
    }
}

/// Joins the wait queue of the key at `at`.
fn enqueue(
    waiting: &Arc<WaitingTakes>,
    at: usize,
    client: Option<Client>,
    due: OnTimer,
) -> Result<Ticket, String> {
    let WaitingTake { key, cached, cost } = &waiting.takes[at];
    let request = WaitRequest::hold(cached.policy.clone(), *cost, waiting.deadline);
    let data = WaitingClient {
        key: Arc::clone(key),
        cached: Arc::clone(cached),
        hold: None,
        all: Some((Arc::clone(waiting), at)),
        client,
        timer: None,
        due,
    };
    queues(|queues| queues.enqueue(Arc::clone(key), request, data))
        .map_err(|full| format!("ERR {full}"))
}

impl WaitingTakes {
    /// A request that waits for up to `timeout` from now on.
    pub(crate) fn new(
        context: Context<'_>,
        takes: impl Iterator<Item = (Box<[u8]>, Arc<CachedPolicy>, u32)>,
        operation: MultiKeyOperation<'_>,
        timeout: Duration,
    ) -> Self {
        let database = context.database();
        let take = |(name, cached, cost)| {
            let key = Arc::new(QueueKey { database, name });
            WaitingTake { key, cached, cost }
        };
        let hold = match operation {
            MultiKeyOperation::Hold { id, ttl } => {
                Some(WaitingHold { id: id.into(), ttl, session: None })
            }
            MultiKeyOperation::Take | MultiKeyOperation::Peek => None,
        };
        Self { takes: takes.map(take).collect(), hold, deadline: context.now() + timeout }
    }

    /// Carries out the steps of a request in the queue of the key at `at` until it sleeps, leaves that queue or is
    /// done. `known`: the decision that was just made.
    fn run(
        &self,
        context: Context<'_>,
        ticket: Ticket,
        (at, mut known): (usize, Option<MultiKeyDecision>),
        (mut event, now): (Event, Timestamp),
    ) -> Result<Progress, CommandError> {
        let mut last = None;
        loop {
            let polled = queues(|queues| queues.poll(ticket, now, event));
            wake(context, polled.wake);
            event = match polled.step {
                Step::Apply(_) => {
                    let taken = match known.take() {
                        Some(taken) => taken,
                        None => self.attempt(context, now)?,
                    };
                    if is_final(&taken) {
                        return Ok(Progress::Done(taken));
                    } else if now >= self.deadline {
                        return self.last(context, taken, now).map(Progress::Done);
                    } else if taken.key != at {
                        return Ok(Progress::Moves(taken));
                    }
                    let decision = taken.each[at];
                    last = Some(taken);
                    Event::Answered(decision.into())
                }
                Step::Observe => Event::Observed(None),
                Step::SleepUntil(then) => return Ok(Progress::Sleeps(then)),
                Step::Done(_) => {
                    let taken = match last {
                        Some(taken) => taken,
                        None => self.attempt(context, now)?,
                    };
                    return self.last(context, taken, now).map(Progress::Done);
                }
            };
        }
    }

    /// Takes or holds, without recording a denial.
    fn attempt(
        &self,
        context: Context<'_>,
        now: Timestamp,
    ) -> Result<MultiKeyDecision, CommandError> {
        if self.peeks_first() {
            let peek = self.apply(context, MultiKeyOperation::Peek, now)?;
            if !peek.decision.allowed() && !self.is_repeated(context, now)? {
                return Ok(peek);
            }
        }
        self.apply(context, self.operation(), now)
    }

    /// Whether a hold under its id is open on each key.
    fn is_repeated(&self, context: Context<'_>, now: Timestamp) -> Result<bool, CommandError> {
        let Some(WaitingHold { id, .. }) = &self.hold else { return Ok(false) };
        for take in &self.takes {
            let name = context.name(&take.key.name);
            if !state::has_open_hold(context, name.as_name(), &take.cached.policy, id, now)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The answer, with a denial recorded where that counts.
    fn last(
        &self,
        context: Context<'_>,
        taken: MultiKeyDecision,
        now: Timestamp,
    ) -> Result<MultiKeyDecision, CommandError> {
        if taken.decision.allowed() || !self.peeks_first() {
            return Ok(taken);
        }
        self.apply(context, self.operation(), now)
    }

    fn peeks_first(&self) -> bool {
        self.takes.iter().any(|take| peeks_first(&take.cached.policy))
    }

    fn apply(
        &self,
        context: Context<'_>,
        operation: MultiKeyOperation<'_>,
        now: Timestamp,
    ) -> Result<MultiKeyDecision, CommandError> {
        let names: Vec<_> = self.takes.iter().map(|take| context.name(&take.key.name)).collect();
        let takes = names.iter().zip(&self.takes);
        let takes: Vec<_> =
            takes.map(|(name, take)| (name.as_name(), &take.cached.policy, take.cost)).collect();
        let taken = state::take_all(context, &takes, operation, Moment::new(now, None))?;
        if operation != MultiKeyOperation::Peek && taken.decision.allowed() {
            for (name, ..) in &takes {
                changed(context, *name);
            }
        }
        Ok(taken)
    }

    fn operation(&self) -> MultiKeyOperation<'_> {
        match &self.hold {
            None => MultiKeyOperation::Take,
            Some(WaitingHold { id, ttl, .. }) => MultiKeyOperation::Hold { id, ttl: *ttl },
        }
    }

    fn answered(&self, context: Context<'_>, taken: MultiKeyDecision) -> WaitAllStart {
        self.count(context, &taken);
        WaitAllStart::Answered(taken)
    }

    /// Counts the decision.
    fn count(&self, context: Context<'_>, taken: &MultiKeyDecision) {
        for (take, decision) in self.takes.iter().zip(&taken.each) {
            stats::decided(decision);
            if !decision.allowed() && options::NOTIFY_DENIALS.get() {
                context.notify_denial(context.name(&take.key.name).as_name());
            }
        }
    }
}

/// Whether waiting changes nothing: it is allowed, or never will be.
fn is_final(taken: &MultiKeyDecision) -> bool {
    !matches!(taken.decision.retry(), Some(Retry::After(_)))
}
