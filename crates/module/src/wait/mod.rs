//! `SG.WAIT`: delays a reply until the request passes, without blocking the server.
//!
//! [`sluicegate_core::wait`] decides the order and the end of waits; this module blocks
//! clients, sets timers and applies operations.
//!
//! A waiting client is only served in a timer of its own: a wake-up is a timer that is due immediately.
//! Therefore nothing is decided within the command of another client.
//!
//! Invariants:
//! - a client that disconnects leaves the queue, and its reservation is released;
//! - no lock is held during a call of the server, because the server may call back.

mod client;
mod queues;
mod timers;

use std::{ffi::c_void, mem, sync::Arc, time::Duration};

use sluicegate_commands::{CommandError, KeyOperation, RepeatedKeys};
use sluicegate_core::{
    Answer, Operation, Timestamp,
    wait::{Event, MAX_OBSERVED_ENTRY, ObservedEntry, Step, Ticket, Waiter},
};

pub(crate) use self::{
    client::WaitReply,
    queues::waiting,
    timers::{applied, changed},
};
use self::{
    queues::{QueueKey, WaitingClient, WaitingRequest, queues, tickets},
    timers::{TicketGuard, answer, arm, remove, wake},
};
use crate::{
    api::{self, Ctx},
    context::Context,
    edge, options,
    policy_cache::CachedPolicy,
    state::{self, NamedOperation},
    stats,
    time::Moment,
};

/// The pause after which a request is decided again that is due while the server must not write.
const PAUSE: Duration = Duration::from_millis(50);
/// The reply to a client that waits for a key whose slot has moved.
const MOVED: &str = "TRYAGAIN the slot of this key has moved to another node; retry";

/// Takes or holds, or lets the client wait for that for up to `timeout`. `None`: it waits. An error is a whole error reply.
/// With `repeated`, the reply has all decisions.
pub(crate) fn begin(
    context: Context<'_>,
    operations: &[KeyOperation<'_, Arc<CachedPolicy>>],
    repeated: Option<RepeatedKeys>,
    timeout: Duration,
) -> Result<Option<WaitReply>, String> {
    let mut request = Box::new(WaitingRequest::new(context, operations, repeated, timeout));
    let no_waiting = api::FLAG_LUA | api::FLAG_MULTI | api::FLAG_DENY_BLOCKING;
    if context.flags() & no_waiting != 0 {
        let answer = request.apply(context, context.now(), Waiter::attempted);
        let answer = answer.map_err(|error| error.to_string())?;
        return Ok(Some(request.reply(context, answer)));
    }
    // Whatever else happens, even a panic: a client that does not wait must not stay in the queue.
    let mut guard = None;
    let progress = request.run(context, &mut guard, Event::Start);
    let (then, guard) = match (progress?, guard) {
        (Progress::Sleeps(then), Some(guard)) => (then, guard),
        (Progress::Sleeps(_), None) => return Err(edge::PANICKED.to_owned()),
        (Progress::Done(answer), guard) => {
            let left = guard.and_then(|guard| remove(context, guard.ticket));
            drop(left);
            return Ok(Some(request.reply(context, answer)));
        }
    };
    let ticket = guard.ticket;
    guard.block();
    sleep(context, ticket, request, then);
    Ok(None)
}

/// Lets a request sleep.
fn sleep(context: Context<'_>, ticket: Ticket, request: Box<WaitingRequest>, then: Timestamp) {
    queues(|queues| queues.data(ticket).map(|it| it.request = Some(request)));
    arm(context, ticket, then.since(context.now()));
}

/// The timer of a waiting client is due; `data` is its ticket.
unsafe extern "C" fn timer_due(ctx: *mut Ctx, data: *mut c_void) {
    // SAFETY: the server passed the context for this call.
    let (context, ticket) = (unsafe { Context::new(ctx) }, Ticket(data.addr() as u64));
    let done = edge::guard("timer", false, || {
        due(context, ticket);
        true
    });
    if !done {
        edge::guard("timer failed", (), || {
            // A timer that is running must not be stopped: the server frees it afterwards.
            queues(|queues| queues.data(ticket).map(|it| it.timer = None));
            answer(context, ticket, Err(edge::PANICKED.to_owned()));
        });
    }
}

/// Decides a waiting request again.
fn due(context: Context<'_>, ticket: Ticket) {
    if context.is_paused() {
        queues(|queues| queues.data(ticket).map(|it| it.timer = None));
        return arm(context, ticket, PAUSE);
    }
    let waiting = queues(|queues| {
        let is_queued = queues.is_queued(ticket);
        let WaitingClient { request, client, timer, .. } = queues.data(ticket)?;
        *timer = None;
        Some((request.take()?, *client, is_queued))
    });
    let Some((mut request, client, is_queued)) = waiting else { return };
    let key = Arc::clone(request.waiter.key(0));
    context.select(key.database);
    let name = context.name(&key.name);
    let name = name.as_name();
    if client.is_none() {
        let refund = remove(context, ticket).and_then(|left| left.refund);
        // A replica must not write.
        if let Some(refund) = refund.filter(|_| context.flags() & api::FLAG_MASTER != 0) {
            let moment = Moment::new(context.now(), None);
            let _ = state::decide(context, name, &request.policies[0], refund, moment);
            changed(context, name);
        }
        return;
    }
    // The state on this node is obsolete then, and must not be written. A request that has a departure is
    // charged already, and passes.
    if is_queued && !context.serves(name) {
        return answer(context, ticket, Err(MOVED.to_owned()));
    }
    let mut guard = Some(TicketGuard { context, ticket });
    let progress = request.run(context, &mut guard, Event::Woken);
    let Some(guard) = guard else { return };
    // The guard answers the client if anything panics before that; afterwards, it has nothing to do.
    match progress {
        Ok(Progress::Sleeps(then)) => {
            sleep(context, guard.ticket, request, then);
            mem::forget(guard);
        }
        Ok(Progress::Done(decided)) => {
            let reply = request.reply(context, decided);
            answer(context, guard.ticket, Ok(reply));
        }
        Err(error) => answer(context, guard.ticket, Err(error)),
    }
}

/// The progress of a request.
enum Progress {
    Sleeps(Timestamp),
    Done(Answer),
}

impl WaitingRequest {
    fn new(
        context: Context<'_>,
        operations: &[KeyOperation<'_, Arc<CachedPolicy>>],
        repeated: Option<RepeatedKeys>,
        timeout: Duration,
    ) -> Self {
        let database = context.database();
        let policies = operations.iter().map(|it| Arc::clone(&it.policy)).collect();
        let mut keys = operations.iter().map(|it| {
            let key = Arc::new(QueueKey { database, name: it.key.bytes.into() });
            (key, it.policy.policy.clone(), it.operation)
        });
        let waiter = match (&repeated, operations.len()) {
            (None, 1) => {
                let (key, policy, operation) = keys.next().expect("there is one");
                Waiter::queued(key, policy, operation, timeout)
            }
            _ => Waiter::queued_all(keys, timeout),
        };
        Self { waiter, policies, repeated }
    }

    /// Carries out the steps of the request until it is done or sleeps. `guard` is of the queue that it is in.
    fn run<'a>(
        &mut self,
        context: Context<'a>,
        guard: &mut Option<TicketGuard<'a>>,
        mut event: Event,
    ) -> Result<Progress, String> {
        let now = context.now();
        let data = || WaitingClient { request: None, client: None, timer: None, due: timer_due };
        loop {
            let polled = queues(|queues| queues.poll(&mut self.waiter, now, event, data));
            self.follow(context, guard);
            polled.wake.into_iter().for_each(|head| wake(context, Some(head)));
            event = match polled.step {
                Step::Apply => {
                    let answer = self.apply(context, now, Waiter::operation);
                    Event::Answered(answer.map_err(|error| error.to_string())?)
                }
                Step::CheckOpen => Event::IsOpen(self.is_open(context, now)),
                Step::Observe => {
                    let observed = self.observe(context, now);
                    Event::Observed(observed.map_err(|error| error.to_string())?)
                }
                Step::SleepUntil(then) => return Ok(Progress::Sleeps(then)),
                Step::Done(answer) => return Ok(Progress::Done(answer)),
                Step::Reject(full) => return Err(format!("ERR {full}")),
            };
        }
    }

    /// Lets `guard` and the client follow to the queue that the request is in.
    fn follow<'a>(&self, context: Context<'a>, guard: &mut Option<TicketGuard<'a>>) {
        let ticket = self.waiter.ticket();
        if ticket == guard.as_ref().map(|it| it.ticket) {
            return;
        }
        mem::forget(mem::replace(guard, ticket.map(|ticket| TicketGuard { context, ticket })));
        let Some(ticket) = ticket else { return };
        let client = queues(|queues| queues.data(ticket).and_then(|it| it.client));
        if let Some(client) = client {
            tickets(|tickets| tickets.insert(client, ticket));
        }
    }

    /// Applies an operation to each key: to all of them or to none.
    fn apply<'s>(
        &'s self,
        context: Context<'_>,
        now: Timestamp,
        operation: impl Fn(&'s Waiter<Arc<QueueKey>>, usize) -> Operation<'s>,
    ) -> Result<Answer, CommandError> {
        let moment = Moment::new(now, None);
        if self.repeated.is_none() {
            let name = context.name(&self.waiter.key(0).name);
            let (name, policy) = (name.as_name(), &self.policies[0]);
            let operation = operation(&self.waiter, 0);
            return Ok(state::decide(context, name, policy, operation, moment)?.into());
        }
        let keys = 0..self.policies.len();
        let names: Vec<_> = keys.map(|index| context.name(&self.waiter.key(index).name)).collect();
        let named = names.iter().zip(&self.policies).enumerate();
        let named = named.map(|(index, (name, cached))| NamedOperation {
            name: name.as_name(),
            policy: &cached.policy,
            operation: operation(&self.waiter, index),
        });
        state::decide_all(context, &named.collect::<Vec<_>>(), moment)
    }

    /// Whether the hold is known to be open on every key.
    fn is_open(&self, context: Context<'_>, now: Timestamp) -> bool {
        let Some(id) = self.waiter.attempted(0).id() else { return false };
        self.policies.iter().enumerate().all(|(index, cached)| {
            let name = context.name(&self.waiter.key(index).name);
            state::has_open_hold(context, name.as_name(), &cached.policy, id, now)
                .is_ok_and(|is_open| is_open)
        })
    }

    /// The state of the only key; `None` if it is too large to be read for each request.
    fn observe(
        &self,
        context: Context<'_>,
        now: Timestamp,
    ) -> Result<Option<ObservedEntry>, CommandError> {
        let name = context.name(&self.waiter.key(0).name);
        let policy = &self.policies[0].policy;
        let entry = state::entry(context, name.as_name(), policy, now, MAX_OBSERVED_ENTRY)?;
        Ok(entry.map(|entry| ObservedEntry { entry, store_time: now, local_time: now }))
    }

    /// The reply with an answer, which is counted. Wakes those that wait for the keys: a denial, too, may have changed a key.
    fn reply(&mut self, context: Context<'_>, answer: Answer) -> WaitReply {
        let is_take = self.repeated.is_none() && self.waiter.attempted(0).id().is_none();
        for (index, decision) in answer.each().iter().enumerate() {
            let name = context.name(&self.waiter.key(index).name);
            stats::decided(decision);
            // The queue of one key has followed its takes.
            if !is_take {
                changed(context, name.as_name());
            }
            if !decision.allowed() && options::NOTIFY_DENIALS.get() {
                context.notify_denial(name.as_name());
            }
        }
        match self.repeated.take() {
            Some(repeated) => WaitReply::All(answer, repeated),
            None => WaitReply::One(answer.decision),
        }
    }
}
