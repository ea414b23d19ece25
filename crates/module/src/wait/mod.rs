//! `SG.WAIT`: delays a reply until the request passes, without blocking the server.
//!
//! Under a `leaky-queue`, the request gets its departure immediately (a reservation) and is held until then. Under
//! any other policy, the waiting requests of a key form a queue, and only its head is decided, when its time has
//! come or the key has changed.
//!
//! A waiting client is only served in a timer of its own: a wake-up is a timer that is due immediately.
//! Therefore nothing is decided within the command of another client.
//!
//! Invariants:
//! - a client that disconnects leaves the queue, and its reservation is released;
//! - a denied request is denied by exactly one take, so that `count=all` records it once;
//! - no lock is held during a call of the server, because the server may call back.

mod queues;
mod server;

use std::{sync::Arc, time::Duration};

use sluicegate_commands::{
    CommandError,
    wait_queue::{MAX_PROJECTED_ENTRY, ObservedEntry, departs},
};
use sluicegate_core::{Decision, Operation, Outcome, Policy, Retry, Timestamp};

pub(crate) use self::queues::waiting;
use self::{
    queues::{QueueEntry, QueueKey, Request, queues},
    server::{Callbacks, Client},
};
use crate::{
    api,
    context::{Context, Name},
    edge, options,
    policy_cache::CachedPolicy,
    state, stats,
    time::Moment,
};

/// The reply to a client that waits for a key whose slot has moved.
const MOVED: &str = "TRYAGAIN the slot of this key has moved to another node; retry";

/// Maximum length of one timer in milliseconds; a longer wait takes several.
const MAX_SLEEP_MILLIS: u64 = 3_600_000;

/// Result of a request on arrival.
#[derive(Debug)]
pub(crate) enum WaitStart {
    Answered(Decision),
    /// The client waits.
    Waits,
    /// Too many clients wait already. Holds the error.
    Refused(String),
}

/// Takes `cost`, or lets the client wait for it, at most for `timeout`.
pub(crate) fn begin(
    context: Context<'_>,
    name: Name<'_>,
    cached: Arc<CachedPolicy>,
    cost: u32,
    timeout: Duration,
) -> Result<WaitStart, CommandError> {
    let now = context.now();
    let database = context.database();
    let key = Arc::new(QueueKey { database, name: name.bytes().into() });
    let request = Request { key, cached, cost, deadline: now + timeout };
    let take = WaitingTake { context, name, request: &request };
    let no_waiting = api::FLAG_LUA | api::FLAG_MULTI | api::FLAG_DENY_BLOCKING;
    if cost == 0 || context.flags() & no_waiting != 0 {
        return take.apply(now, Operation::Take(cost)).map(WaitStart::Answered);
    }
    if let Err(refusal) = queues(|queues| queues.room(&request.key)) {
        return Ok(WaitStart::Refused(format!("ERR {refusal}")));
    }
    let asked = if departs(&request.cached.policy) {
        let decision = take.apply(now, Operation::Reserve { cost, max_wait: timeout })?;
        if decision.allowed() {
            WaitOutcome::Passed(decision)
        } else {
            WaitOutcome::Denied(decision)
        }
    } else {
        if queues(|queues| queues.head(&request.key).is_none()) {
            take.head(now)?
        } else {
            let free_at = take.projected(now, None)?;
            let missed = now >= request.deadline || free_at.is_none_or(|at| at > request.deadline);
            if missed { take.deny(now, free_at)? } else { WaitOutcome::Later(request.deadline) }
        }
    };
    let (departure, wake) = match asked {
        WaitOutcome::Denied(decision) => return Ok(WaitStart::Answered(decision)),
        WaitOutcome::Passed(decision) if decision.delay().is_zero() => {
            return Ok(WaitStart::Answered(decision));
        }
        WaitOutcome::Passed(decision) => (Some(now + decision.delay()), now + decision.delay()),
        WaitOutcome::Later(at) => (None, at),
    };
    let client = server::block::<Waits>(context);
    let id = queues(|queues| {
        queues.add(QueueEntry { request, client: Some(client), timer: None, departure })
    });
    arm(context, id, now, wake);
    server::subscribe::<Waits>(context);
    Ok(WaitStart::Waits)
}

/// An operation was applied to `name`: requests that wait for it may now pass.
#[inline]
pub(crate) fn asked(context: Context<'_>, name: Name<'_>, policy: &Policy, operation: Operation) {
    if waiting() == 0 {
        return;
    }
    match operation {
        Operation::Peek(_) => {}
        Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => changed(context, name),
        // The head expects other takes under its own policy. A take under another one changes its state.
        Operation::Take(_) | Operation::Reserve { .. } => {
            let key = QueueKey { database: context.database(), name: name.bytes().into() };
            let head = queues(|queues| {
                queues.changed(&key);
                let (head, request) = queues.head(&key)?;
                (!request.policy.same_rule(policy)).then_some(*head)
            });
            wake(context, head);
        }
    }
}

/// The usage of `name` may be lower than before: its head is decided again.
pub(crate) fn changed(context: Context<'_>, name: Name<'_>) {
    if waiting() > 0 {
        let key = QueueKey { database: context.database(), name: name.bytes().into() };
        let head = queues(|queues| {
            queues.changed(&key);
            queues.head(&key).map(|head| head.0)
        });
        wake(context, head);
    }
}

/// The callbacks of the server for waiting clients.
struct Waits;

impl Callbacks for Waits {
    fn disconnected(context: Context<'_>, client: Client) {
        gone(context, client);
    }

    fn timer_due(context: Context<'_>, id: u64) {
        due(context, id);
    }

    fn timer_failed(context: Context<'_>, id: u64) {
        failed(context, id);
    }

    fn key_changed(context: Context<'_>, name: Name<'_>) {
        changed(context, name);
    }

    fn all_changed(context: Context<'_>) {
        all_changed(context);
    }
}

/// Any key may have changed.
fn all_changed(context: Context<'_>) {
    for head in queues(|queues| queues.heads()) {
        wake(context, Some(head));
    }
}

/// The client has disconnected. Its timer, due immediately, removes its request.
fn gone(context: Context<'_>, client: Client) {
    let id = queues(|queues| {
        let id = queues.of(client)?;
        queues.get(id)?.client = None;
        Some(id)
    });
    wake(context, id);
}

/// The timer of a waiter is due.
fn due(context: Context<'_>, id: u64) {
    let waiter = queues(|queues| {
        let waiter = queues.get(id)?;
        waiter.timer = None;
        Some((waiter.request.clone(), waiter.departure, waiter.client.is_none()))
    });
    let Some((request, departure, gone)) = waiter else { return };
    context.select(request.key.database);
    let name = context.name(&request.key.name);
    let name = name.as_name();
    let now = context.now();
    let take = WaitingTake { context, name, request: &request };
    if gone {
        remove(context, id);
        // A replica may not write, and a request that was sent keeps its units.
        if departure.is_some_and(|at| now < at) && context.flags() & api::FLAG_MASTER != 0 {
            let _ = take.apply(now, Operation::Refund(request.cost));
            changed(context, name);
        }
        return;
    }
    // The state on this node is obsolete then, and must not be written. A request with a departure is charged
    // already, and passes.
    if departure.is_none() && !context.serves(name) {
        return answer(context, id, Err(MOVED.to_owned()));
    }
    let asked = match departure {
        Some(at) if now < at => Ok(WaitOutcome::Later(at)),
        Some(_) => take.apply(now, Operation::Peek(0)).map(WaitOutcome::Denied),
        None => take.turn(now, id),
    };
    match asked {
        Ok(WaitOutcome::Later(at)) => arm(context, id, now, at),
        Ok(WaitOutcome::Passed(decision)) if !decision.delay().is_zero() => {
            let departure = now + decision.delay();
            let next = queues(|queues| queues.step_out(id, departure));
            arm(context, id, now, departure);
            wake(context, next);
        }
        Ok(asked @ (WaitOutcome::Passed(decision) | WaitOutcome::Denied(decision))) => {
            if matches!(asked, WaitOutcome::Passed(_)) {
                let next = queues(|queues| queues.passed(id));
                wake(context, next);
            }
            stats::decided(&decision);
            if !decision.allowed() && options::NOTIFY_DENIALS.get() {
                context.notify_denial(name);
            }
            answer(context, id, Ok(decision));
        }
        Err(error) => answer(context, id, Err(error.to_string())),
    }
}

/// [`due`] has panicked.
fn failed(context: Context<'_>, id: u64) {
    // A timer that is running must not be stopped: the server frees it afterwards.
    queues(|queues| queues.get(id).map(|waiter| waiter.timer = None));
    answer(context, id, Err(edge::PANICKED.to_owned()));
}

/// Removes a request and replies to its client.
fn answer(context: Context<'_>, id: u64, answer: Result<Decision, String>) {
    if let Some(client) = remove(context, id) {
        client.answer(answer);
    }
}

/// Removes a request, and wakes the next one.
fn remove(context: Context<'_>, id: u64) -> Option<Client> {
    let (waiter, next) = queues(|queues| queues.remove(id))?;
    if let Some(timer) = waiter.timer {
        context.stop_timer(timer);
    }
    wake(context, next);
    waiter.client
}

fn wake(context: Context<'_>, id: Option<u64>) {
    if let Some(id) = id {
        arm(context, id, Timestamp::EPOCH, Timestamp::EPOCH);
    }
}

/// Sets the timer of a request to `at`, and stops any other.
fn arm(context: Context<'_>, id: u64, now: Timestamp, at: Timestamp) {
    let millis = micros(until(now, at)).div_ceil(1000).min(MAX_SLEEP_MILLIS);
    let timer = server::timer::<Waits>(context, millis, id);
    let old = queues(|queues| queues.get(id).and_then(|waiter| waiter.timer.replace(timer)));
    if let Some(old) = old {
        context.stop_timer(old);
    }
}

/// A waiting request, and its key in one call of the server.
#[derive(Clone, Copy)]
struct WaitingTake<'a> {
    context: Context<'a>,
    name: Name<'a>,
    request: &'a Request,
}

#[derive(Clone, Copy)]
enum WaitOutcome {
    Passed(Decision),
    Denied(Decision),
    /// To be decided again then.
    Later(Timestamp),
}

impl WaitingTake<'_> {
    /// Decides as the queued request of number `id`.
    fn turn(self, now: Timestamp, id: u64) -> Result<WaitOutcome, CommandError> {
        let is_head = queues(|queues| queues.head(&self.request.key).is_some_and(|it| it.0 == id));
        if is_head {
            self.head(now)
        } else if now >= self.request.deadline {
            let free_at = self.projected(now, Some(id))?;
            self.deny(now, free_at)
        } else {
            Ok(WaitOutcome::Later(self.request.deadline))
        }
    }

    /// Decides as the head of the queue.
    fn head(self, now: Timestamp) -> Result<WaitOutcome, CommandError> {
        let Request { cached, cost, deadline, .. } = self.request;
        // Peek first if a denial is recorded, or if an allowed request may be delayed beyond its deadline.
        let careful = cached.policy.limits().iter().any(|it| it.count_all() || it.is_queue());
        let first = if careful { Operation::Peek(*cost) } else { Operation::Take(*cost) };
        let decision = self.apply(now, first)?;
        match decision.outcome {
            Outcome::Allow { delay } if now + delay > *deadline => {
                let late = delay.saturating_sub(until(now, *deadline));
                Ok(WaitOutcome::Denied(denied(decision, late)))
            }
            Outcome::Allow { .. } if careful => self.take(now),
            Outcome::Allow { .. } => Ok(WaitOutcome::Passed(decision)),
            Outcome::Deny { retry: Retry::After(wait) } if now + wait <= *deadline => {
                Ok(WaitOutcome::Later(now + wait))
            }
            Outcome::Deny { .. } if careful => self.take(now),
            Outcome::Deny { .. } => Ok(WaitOutcome::Denied(decision)),
        }
    }

    fn take(self, now: Timestamp) -> Result<WaitOutcome, CommandError> {
        let decision = self.apply(now, Operation::Take(self.request.cost))?;
        Ok(if decision.allowed() {
            WaitOutcome::Passed(decision)
        } else {
            WaitOutcome::Denied(decision)
        })
    }

    /// The denial of one that stands in line: what a take says, or if that would pass out of turn,
    /// when the `free_at` would come.
    fn deny(self, now: Timestamp, free_at: Option<Timestamp>) -> Result<WaitOutcome, CommandError> {
        let peek = self.apply(now, Operation::Peek(self.request.cost))?;
        if !peek.allowed() {
            return self.take(now);
        }
        let free_at = free_at.unwrap_or(self.request.deadline);
        Ok(WaitOutcome::Denied(denied(peek, until(now, free_at).max(Duration::from_micros(1)))))
    }

    /// When the request would pass after those ahead of it and without others, or a time before that; `None`:
    /// never. `id` is its number, if it is queued already.
    fn projected(self, now: Timestamp, id: Option<u64>) -> Result<Option<Timestamp>, CommandError> {
        let policy = &self.request.cached.policy;
        let Some(entry) = state::entry(self.context, self.name, policy, now, MAX_PROJECTED_ENTRY)?
        else {
            // It is too large to be read for each request.
            let peek = self.apply(now, Operation::Peek(self.request.cost))?;
            return Ok(match peek.outcome {
                Outcome::Allow { .. } => Some(now),
                Outcome::Deny { retry: Retry::After(wait) } => Some(now + wait),
                Outcome::Deny { retry: Retry::Never } => None,
            });
        };
        let observed = ObservedEntry { entry, store_time: now, local_time: now };
        Ok(queues(|queues| queues.projected(self.request, id, observed)))
    }

    fn apply(self, now: Timestamp, operation: Operation) -> Result<Decision, CommandError> {
        let moment = Moment::new(now, None);
        state::decide(self.context, self.name, &self.request.cached, operation, moment)
    }
}

/// `decision` as a denial.
fn denied(decision: Decision, retry: Duration) -> Decision {
    Decision { outcome: Outcome::Deny { retry: Retry::After(retry) }, ..decision }
}

/// The time from `now` to `then`; zero if `then` is past.
fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::from_micros(then.as_micros().saturating_sub(now.as_micros()))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
