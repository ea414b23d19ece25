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
mod multi_key;
mod queues;
mod timers;

use std::{ffi::c_void, sync::Arc, time::Duration};

use sluicegate_commands::CommandError;
use sluicegate_core::{
    Answer, Decision, Operation, Timestamp,
    wait::{Event, MAX_OBSERVED_ENTRY, ObservedEntry, Step, Ticket, WaitRequest, peeks_first},
};

use self::{
    client::WaitReply,
    queues::{QueueKey, WaitingClient, queues},
    timers::{TicketGuard, answer, arm, remove, wake},
};
pub(crate) use self::{
    queues::{WaitingHold, WaitingTakes, waiting},
    timers::{applied, changed},
};
use crate::{
    api::{self, Ctx},
    context::{Context, Name},
    edge, options,
    policy_cache::CachedPolicy,
    state, stats,
    time::Moment,
};

/// The pause after which a request is decided again that is due while the server must not write.
const PAUSE: Duration = Duration::from_millis(50);
/// The reply to a client that waits for a key whose slot has moved.
const MOVED: &str = "TRYAGAIN the slot of this key has moved to another node; retry";

/// Result of a request on arrival.
#[derive(Debug)]
pub(crate) enum WaitStart {
    Answered(Decision),
    /// The client waits.
    Waits,
    /// Too many clients wait already. Holds the error.
    Rejected(String),
}

/// Takes `cost`, or lets the client wait for it, at most for `timeout`.
pub(crate) fn begin(
    context: Context<'_>,
    name: Name<'_>,
    cached: &Arc<CachedPolicy>,
    cost: u32,
    timeout: Duration,
    hold: Option<&WaitingHold>,
) -> Result<WaitStart, CommandError> {
    let now = context.now();
    let key = KeyInCall { context, name, cached, hold, now };
    let no_waiting = api::FLAG_LUA | api::FLAG_MULTI | api::FLAG_DENY_BLOCKING;
    if cost == 0 || context.flags() & no_waiting != 0 {
        return key.apply(Operation::Take(cost)).map(WaitStart::Answered);
    }
    let new_request = if hold.is_some() { WaitRequest::hold } else { WaitRequest::take };
    let request = new_request(cached.policy.clone(), cost, now + timeout);
    let queue_key = Arc::new(QueueKey { database: context.database(), name: name.bytes().into() });
    // A repeated hold is answered before those that may wait for its units, and no peek denies it.
    if let Some(WaitingHold { id, .. }) = hold
        && (peeks_first(&cached.policy) || queues(|queues| queues.has_queue(&queue_key)))
        && state::has_open_hold(context, name, &cached.policy, id, now)?
    {
        return key.apply(Operation::Take(cost)).map(WaitStart::Answered);
    }
    let client = WaitingClient {
        key: Arc::clone(&queue_key),
        cached: Arc::clone(cached),
        hold: hold.cloned(),
        all: None,
        client: None,
        timer: None,
        due: timer_due,
    };
    let ticket = match queues(|queues| queues.enqueue(queue_key, request, client)) {
        Ok(ticket) => ticket,
        Err(full) => return Ok(WaitStart::Rejected(format!("ERR {full}"))),
    };
    // Whatever else happens, even a panic: a client that does not wait must not stay in the queue.
    let guard = TicketGuard { context, ticket };
    let then = match key.run(ticket, Event::Start)? {
        Progress::Done(decision) => return Ok(WaitStart::Answered(decision)),
        Progress::Sleeps(then) => then,
    };
    guard.block();
    arm(context, ticket, then.since(now));
    Ok(WaitStart::Waits)
}

/// Takes from several keys, or holds. `None`: the client waits for them. An error is a whole error reply.
pub(crate) fn begin_all(
    context: Context<'_>,
    waiting: WaitingTakes,
) -> Result<Option<Answer>, String> {
    multi_key::begin_all(context, waiting, timer_due)
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
        let WaitingClient { key, cached, hold, all, client, timer, .. } = queues.data(ticket)?;
        *timer = None;
        let (key, cached) = (Arc::clone(key), Arc::clone(cached));
        Some((key, cached, hold.clone(), all.take(), *client, is_queued))
    });
    let Some((queue_key, cached, hold, all, client, is_queued)) = waiting else { return };
    context.select(queue_key.database);
    let name = context.name(&queue_key.name);
    let name = name.as_name();
    let now = context.now();
    let key = KeyInCall { context, name, cached: &cached, hold: hold.as_ref(), now };
    if client.is_none() {
        let refund = remove(context, ticket).and_then(|(_, refund)| refund);
        // A replica must not write.
        if let Some(refund) = refund.filter(|_| context.flags() & api::FLAG_MASTER != 0) {
            let _ = key.apply(refund);
            changed(context, name);
        }
        return;
    }
    // The state on this node is obsolete then, and must not be written. A request that has a departure is
    // charged already, and passes.
    if is_queued && !context.serves(name) {
        return answer(context, ticket, Err(MOVED.to_owned()));
    }
    if let Some(waiting) = all {
        return multi_key::due_all(context, ticket, waiting, timer_due);
    }
    match key.run(ticket, Event::Woken) {
        Ok(Progress::Sleeps(then)) => arm(context, ticket, then.since(now)),
        Ok(Progress::Done(decision)) => {
            stats::decided(&decision);
            if !decision.allowed() && options::NOTIFY_DENIALS.get() {
                context.notify_denial(name);
            }
            answer(context, ticket, Ok(WaitReply::One(decision)));
        }
        Err(error) => answer(context, ticket, Err(error.to_string())),
    }
}

/// A key in one call of the server.
#[derive(Clone, Copy)]
struct KeyInCall<'a> {
    context: Context<'a>,
    name: Name<'a>,
    cached: &'a CachedPolicy,
    hold: Option<&'a WaitingHold>,
    now: Timestamp,
}

/// The progress of a request.
enum Progress {
    Sleeps(Timestamp),
    Done(Decision),
}

impl KeyInCall<'_> {
    /// Carries out the steps of a waiting request until it sleeps or is done.
    fn run(self, ticket: Ticket, mut event: Event) -> Result<Progress, CommandError> {
        loop {
            let polled = queues(|queues| queues.poll(ticket, self.now, event));
            wake(self.context, polled.wake);
            event = match polled.step {
                Step::Apply(operation) => Event::Answered(self.apply(operation)?.into()),
                Step::Observe => Event::Observed(self.observe()?),
                Step::SleepUntil(then) => return Ok(Progress::Sleeps(then)),
                Step::Done(answer) => return Ok(Progress::Done(answer.decision)),
            };
        }
    }

    fn apply(self, operation: Operation) -> Result<Decision, CommandError> {
        let moment = Moment::new(self.now, None);
        if let (Some(WaitingHold { id, ttl, .. }), Operation::Take(cost)) = (self.hold, operation) {
            let hold = Operation::Hold { id, cost, ttl: *ttl };
            return state::decide(self.context, self.name, self.cached, hold, moment);
        }
        state::decide(self.context, self.name, self.cached, operation, moment)
    }

    /// The state of the key; `None` if it is too large to be read for each request.
    fn observe(self) -> Result<Option<ObservedEntry>, CommandError> {
        let Self { context, name, cached, now, .. } = self;
        let entry = state::entry(context, name, &cached.policy, now, MAX_OBSERVED_ENTRY)?;
        Ok(entry.map(|entry| ObservedEntry { entry, store_time: now, local_time: now }))
    }
}
