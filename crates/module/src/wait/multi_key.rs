//! Clients that wait for several keys: all of them pass, or none. [`MultiKeyWaiter`] decides; this module carries out its
//! steps.

use std::{sync::Arc, time::Duration};

use sluicegate_commands::{KeyOperation, RepeatedKeys};
use sluicegate_core::{
    Answer, Operation, Timestamp,
    wait::{MultiKeyEvent, MultiKeyStep, MultiKeyWaiter, Ticket, WaitRequest},
};

use super::{
    client::{Client, WaitReply},
    queues::{QueueKey, WaitingClient, WaitingTake, WaitingTakes, queues, tickets},
    timers::{TicketGuard, answer, arm, changed, remove, wake},
};
use crate::{
    api::{self, OnTimer},
    context::Context,
    options,
    policy_cache::CachedPolicy,
    state::{self, NamedOperation},
    stats,
    time::Moment,
};

/// Takes from all keys, or holds. `None`: the client waits for them. An error is a whole error reply.
pub(super) fn begin_all(
    context: Context<'_>,
    waiting: WaitingTakes,
    due: OnTimer,
) -> Result<Option<Answer>, String> {
    let no_waiting = api::FLAG_LUA | api::FLAG_MULTI | api::FLAG_DENY_BLOCKING;
    if context.flags() & no_waiting != 0 {
        let taken = waiting.apply(context, context.now())?;
        waiting.answered(context, &taken);
        return Ok(Some(taken));
    }
    // Whatever else happens, even a panic: a client that does not wait must not stay in the queue.
    let mut guard = None;
    let taken = Box::new(waiting).run(context, &mut guard, due, MultiKeyEvent::Start)?;
    if let Some(guard) = guard.filter(|_| taken.is_none()) {
        guard.block();
    }
    Ok(taken)
}

/// Decides a waiting request for several keys again.
pub(super) fn due_all(
    context: Context<'_>,
    ticket: Ticket,
    waiting: Box<WaitingTakes>,
    due: OnTimer,
) {
    let mut guard = Some(TicketGuard { context, ticket });
    let repeated = waiting.repeated.clone();
    let reply = waiting.run(context, &mut guard, due, MultiKeyEvent::Woken).transpose();
    // If a queue was full, the client has its reply.
    let Some(guard) = guard else { return };
    match reply {
        Some(reply) => {
            answer(context, guard.ticket, reply.map(|taken| WaitReply::All(taken, repeated)))
        }
        None => std::mem::forget(guard),
    }
}

impl WaitingTakes {
    /// A request that waits for up to `timeout` from now on.
    pub(crate) fn new(
        context: Context<'_>,
        operations: Vec<KeyOperation<'_, Arc<CachedPolicy>>>,
        repeated: RepeatedKeys,
        timeout: Duration,
    ) -> Self {
        let database = context.database();
        let operation = operations.first().map_or(Operation::Take(0), |it| it.operation);
        let take = |KeyOperation { key, policy: cached, operation }: KeyOperation<'_, _>| {
            let key = Arc::new(QueueKey { database, name: key.bytes.into() });
            WaitingTake { key, cached, cost: operation.cost() }
        };
        let takes: Vec<_> = operations.into_iter().map(take).collect();
        let policies = takes.iter().map(|take| (take.cached.policy.clone(), take.cost));
        let waiter = MultiKeyWaiter::new(policies, operation, timeout);
        Self { takes, repeated, waiter }
    }

    /// Carries out the steps of a request until it is done or (`None`) sleeps. `guard` is of the queue that it is in.
    fn run<'a>(
        mut self: Box<Self>,
        context: Context<'a>,
        guard: &mut Option<TicketGuard<'a>>,
        due: OnTimer,
        mut event: MultiKeyEvent,
    ) -> Result<Option<Answer>, String> {
        let now = context.now();
        loop {
            event = match self.waiter.poll(now, event) {
                MultiKeyStep::Apply => MultiKeyEvent::Answered(self.apply(context, now)?),
                MultiKeyStep::CheckOpen(id) => {
                    let is_open = |WaitingTake { key, cached, .. }: &WaitingTake| {
                        let name = context.name(&key.name);
                        state::has_open_hold(context, name.as_name(), &cached.policy, &id, now)
                            .is_ok_and(|is_open| is_open)
                    };
                    MultiKeyEvent::IsOpen(self.takes.iter().all(is_open))
                }
                MultiKeyStep::Enter { key, request } => {
                    let left = guard.take().and_then(|it| remove(context, it.ticket));
                    let client = left.and_then(|(client, _)| client);
                    let ticket = self.enter((key, request), client, due)?;
                    *guard = Some(TicketGuard { context, ticket });
                    MultiKeyEvent::Entered(ticket)
                }
                MultiKeyStep::Poll(ticket, event) => {
                    let polled = queues(|queues| queues.poll(ticket, now, event));
                    wake(context, polled.wake);
                    MultiKeyEvent::Queued(polled.step)
                }
                MultiKeyStep::SleepUntil(ticket, then) => {
                    queues(|queues| queues.data(ticket).map(|it| it.all = Some(self)));
                    arm(context, ticket, then.since(now));
                    return Ok(None);
                }
                MultiKeyStep::Done(taken) => {
                    self.answered(context, &taken);
                    return Ok(Some(taken));
                }
            };
        }
    }

    /// Enters the queue of a key. A client that has waited elsewhere gets the error.
    fn enter(
        &self,
        (key, request): (usize, WaitRequest),
        client: Option<Client>,
        due: OnTimer,
    ) -> Result<Ticket, String> {
        let WaitingTake { key, cached, .. } = &self.takes[key];
        let data = WaitingClient {
            key: Arc::clone(key),
            cached: Arc::clone(cached),
            hold: None,
            all: None,
            client,
            timer: None,
            due,
        };
        let entered = queues(|queues| queues.enqueue(Arc::clone(key), request, data));
        match (entered, client) {
            (Ok(ticket), Some(client)) => _ = tickets(|tickets| tickets.insert(client, ticket)),
            (Err(full), Some(client)) => client.answer(Err(format!("ERR {full}"))),
            _ => {}
        }
        entered.map_err(|full| format!("ERR {full}"))
    }

    fn apply(&self, context: Context<'_>, now: Timestamp) -> Result<Answer, String> {
        let names: Vec<_> = self.takes.iter().map(|take| context.name(&take.key.name)).collect();
        let takes = names.iter().zip(&self.takes);
        let named = takes.map(|(name, take)| NamedOperation {
            name: name.as_name(),
            policy: &take.cached.policy,
            operation: self.waiter.operation().with_cost(take.cost),
        });
        let named: Vec<_> = named.collect();
        state::decide_all(context, &named, Moment::new(now, None))
            .map_err(|error| error.to_string())
    }

    /// Counts the decision, and wakes those that wait for the keys: a denial, too, may have changed a key.
    fn answered(&self, context: Context<'_>, taken: &Answer) {
        for (take, decision) in self.takes.iter().zip(taken.each()) {
            let name = context.name(&take.key.name);
            stats::decided(decision);
            changed(context, name.as_name());
            if !decision.allowed() && options::NOTIFY_DENIALS.get() {
                context.notify_denial(name.as_name());
            }
        }
    }
}
