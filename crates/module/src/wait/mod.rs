//! `SG.WAIT`: holding an answer back until the request passes, without holding the server.
//!
//! Under a policy of the gcra machine with a `leaky-queue`, the request gets its departure at once
//! (a reservation) and is held until then. Under any other, the waiters of a key stand in line, and
//! only the head asks, when its time has come or something has changed.
//!
//! All that happens while a client waits happens in a timer of its own: a wake-up is a timer that is
//! due at once. So nothing is ever decided within another client's command.
//!
//! Invariants:
//! - a waiter that is gone, for whatever reason, leaves the line and gives back what it was assigned;
//! - one that is denied was denied by exactly one take, so that `count=all` records it once;
//! - no lock is held while the server is called, which may call back.

mod line;
mod server;

use std::{sync::Arc, time::Duration};

use sluicegate_commands::{
    CommandError,
    wait_queue::{MAX_PROJECTED_ENTRY, ObservedEntry, departs},
};
use sluicegate_core::{Decision, Operation, Outcome, Policy, Retry, Timestamp};

pub(crate) use self::line::waiting;
use self::{
    line::{Place, Request, Waiter, lines},
    server::Client,
};
use crate::{
    api,
    context::{Context, Name},
    edge, options,
    rules::Rule,
    state, stats,
    time::Moment,
};

/// The answer to one who waits for a key whose slot has moved.
const MOVED: &str = "TRYAGAIN the slot of this key has moved to another node; retry";

/// The longest single sleep; a longer wait takes several.
const LONGEST_SLEEP: u64 = 3_600_000;

/// What became of a request on arrival.
#[derive(Debug)]
pub(crate) enum Begun {
    Answered(Decision),
    /// The client waits.
    Waits,
    /// Too many wait already. Holds the words.
    Refused(String),
}

/// Takes `cost`, or lets the client wait for it, for `timeout` at most.
pub(crate) fn begin(
    context: Context<'_>,
    name: Name<'_>,
    rule: Arc<Rule>,
    cost: u32,
    timeout: Duration,
) -> Result<Begun, CommandError> {
    let now = context.now();
    let database = context.database();
    let place = Arc::new(Place { database, key: name.bytes().into() });
    let request = Request { place, rule, cost, deadline: now + timeout };
    let ask = Ask { context, name, request: &request };
    let no_waiting = api::FLAG_LUA | api::FLAG_MULTI | api::FLAG_DENY_BLOCKING;
    if cost == 0 || context.flags() & no_waiting != 0 {
        return ask.apply(now, Operation::Take(cost)).map(Begun::Answered);
    }
    if let Err(refusal) = lines(|lines| lines.room(&request.place)) {
        return Ok(Begun::Refused(format!("ERR {refusal}")));
    }
    let asked = if departs(&request.rule.policy) {
        let decision = ask.apply(now, Operation::Reserve { cost, max_wait: timeout })?;
        if decision.allowed() { Asked::Passed(decision) } else { Asked::Denied(decision) }
    } else {
        if lines(|lines| lines.head(&request.place).is_none()) {
            ask.head(now)?
        } else {
            let turn = ask.projected(now, None)?;
            let missed = now >= request.deadline || turn.is_none_or(|at| at > request.deadline);
            if missed { ask.deny(now, turn)? } else { Asked::Later(request.deadline) }
        }
    };
    let (departure, wake) = match asked {
        Asked::Denied(decision) => return Ok(Begun::Answered(decision)),
        Asked::Passed(decision) if decision.delay().is_zero() => {
            return Ok(Begun::Answered(decision));
        }
        Asked::Passed(decision) => (Some(now + decision.delay()), now + decision.delay()),
        Asked::Later(at) => (None, at),
    };
    let client = server::block(context);
    let id =
        lines(|lines| lines.add(Waiter { request, client: Some(client), timer: None, departure }));
    arm(context, id, now, wake);
    server::listen(context);
    Ok(Begun::Waits)
}

/// `name` was asked: those who wait for it may have become able to pass.
#[inline]
pub(crate) fn asked(context: Context<'_>, name: Name<'_>, policy: &Policy, operation: Operation) {
    if waiting() == 0 {
        return;
    }
    match operation {
        Operation::Peek(_) => {}
        Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => changed(context, name),
        // The head reckons with those that pass it. If it asks under another policy, what it waits
        // for has changed.
        Operation::Take(_) | Operation::Reserve { .. } => {
            let place = Place { database: context.database(), key: name.bytes().into() };
            let head = lines(|lines| {
                lines.changed(&place);
                let (head, request) = lines.head(&place)?;
                (!request.policy.same_rule(policy)).then_some(*head)
            });
            wake(context, head);
        }
    }
}

/// Less may be in use of `name` than before: its head asks again.
pub(crate) fn changed(context: Context<'_>, name: Name<'_>) {
    if waiting() > 0 {
        let place = Place { database: context.database(), key: name.bytes().into() };
        let head = lines(|lines| {
            lines.changed(&place);
            lines.head(&place).map(|head| head.0)
        });
        wake(context, head);
    }
}

/// Any key may have changed.
fn all_changed(context: Context<'_>) {
    for head in lines(|lines| lines.heads()) {
        wake(context, Some(head));
    }
}

/// The client has gone. What it leaves is seen to when its timer is due.
fn gone(context: Context<'_>, client: Client) {
    let id = lines(|lines| {
        let id = lines.of(client)?;
        lines.get(id)?.client = None;
        Some(id)
    });
    wake(context, id);
}

/// The timer of a waiter is due.
fn due(context: Context<'_>, id: u64) {
    let waiter = lines(|lines| {
        let waiter = lines.get(id)?;
        waiter.timer = None;
        Some((waiter.request.clone(), waiter.departure, waiter.client.is_none()))
    });
    let Some((request, departure, gone)) = waiter else { return };
    context.select(request.place.database);
    let name = context.name(&request.place.key);
    let name = name.as_name();
    let now = context.now();
    let ask = Ask { context, name, request: &request };
    if gone {
        remove(context, id);
        // A replica may not write; who has departed has nothing to give back.
        if departure.is_some_and(|at| now < at) && context.flags() & api::FLAG_MASTER != 0 {
            let _ = ask.apply(now, Operation::Refund(request.cost));
            changed(context, name);
        }
        return;
    }
    // What is stored here says nothing then, and must not come to be stored. One that has its departure
    // has been charged, and passes all the same.
    if departure.is_none() && !context.serves(name) {
        return answer(context, id, Err(MOVED.to_owned()));
    }
    let asked = match departure {
        Some(at) if now < at => Ok(Asked::Later(at)),
        Some(_) => ask.apply(now, Operation::Peek(0)).map(Asked::Denied),
        None => ask.turn(now, id),
    };
    match asked {
        Ok(Asked::Later(at)) => arm(context, id, now, at),
        Ok(Asked::Passed(decision)) if !decision.delay().is_zero() => {
            let departure = now + decision.delay();
            let next = lines(|lines| lines.step_out(id, departure));
            arm(context, id, now, departure);
            wake(context, next);
        }
        Ok(asked @ (Asked::Passed(decision) | Asked::Denied(decision))) => {
            if matches!(asked, Asked::Passed(_)) {
                let next = lines(|lines| lines.passed(id));
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

/// What was to be done about a waiter whose timer is due has failed.
fn failed(context: Context<'_>, id: u64) {
    // A timer that is running must not be stopped: the server frees it afterwards.
    lines(|lines| lines.get(id).map(|waiter| waiter.timer = None));
    answer(context, id, Err(edge::PANICKED.to_owned()));
}

/// Answers a waiter, which then waits no more.
fn answer(context: Context<'_>, id: u64, answer: Result<Decision, String>) {
    if let Some(client) = remove(context, id) {
        client.answer(answer);
    }
}

/// Takes a waiter away, and wakes who comes after it.
fn remove(context: Context<'_>, id: u64) -> Option<Client> {
    let (waiter, next) = lines(|lines| lines.remove(id))?;
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

/// Lets the timer of a waiter be due at `at`, and no other.
fn arm(context: Context<'_>, id: u64, now: Timestamp, at: Timestamp) {
    let millis = micros(until(now, at)).div_ceil(1000).min(LONGEST_SLEEP);
    let timer = server::timer(context, millis, id);
    let old = lines(|lines| lines.get(id).and_then(|waiter| waiter.timer.replace(timer)));
    if let Some(old) = old {
        context.stop_timer(old);
    }
}

/// What is asked, and of which key.
#[derive(Clone, Copy)]
struct Ask<'a> {
    context: Context<'a>,
    name: Name<'a>,
    request: &'a Request,
}

#[derive(Clone, Copy)]
enum Asked {
    Passed(Decision),
    Denied(Decision),
    /// To be asked again then.
    Later(Timestamp),
}

impl Ask<'_> {
    /// Asks as the one who stands in line with that number.
    fn turn(self, now: Timestamp, id: u64) -> Result<Asked, CommandError> {
        let is_head = lines(|lines| lines.head(&self.request.place).is_some_and(|it| it.0 == id));
        if is_head {
            self.head(now)
        } else if now >= self.request.deadline {
            let turn = self.projected(now, Some(id))?;
            self.deny(now, turn)
        } else {
            Ok(Asked::Later(self.request.deadline))
        }
    }

    /// Asks as the head of the line.
    fn head(self, now: Timestamp) -> Result<Asked, CommandError> {
        let Request { rule, cost, deadline, .. } = self.request;
        // Where a denial leaves a mark, or a pass may come too late to be of use, look first.
        let careful = rule.policy.limits().iter().any(|it| it.count_all() || it.is_queue());
        let first = if careful { Operation::Peek(*cost) } else { Operation::Take(*cost) };
        let decision = self.apply(now, first)?;
        match decision.outcome {
            Outcome::Allow { delay } if now + delay > *deadline => {
                let late = delay.saturating_sub(until(now, *deadline));
                Ok(Asked::Denied(denied(decision, late)))
            }
            Outcome::Allow { .. } if careful => self.take(now),
            Outcome::Allow { .. } => Ok(Asked::Passed(decision)),
            Outcome::Deny { retry: Retry::After(wait) } if now + wait <= *deadline => {
                Ok(Asked::Later(now + wait))
            }
            Outcome::Deny { .. } if careful => self.take(now),
            Outcome::Deny { .. } => Ok(Asked::Denied(decision)),
        }
    }

    fn take(self, now: Timestamp) -> Result<Asked, CommandError> {
        let decision = self.apply(now, Operation::Take(self.request.cost))?;
        Ok(if decision.allowed() { Asked::Passed(decision) } else { Asked::Denied(decision) })
    }

    /// The denial of one that stands in line: what a take says, or if that would pass out of turn,
    /// when the `turn` would come.
    fn deny(self, now: Timestamp, turn: Option<Timestamp>) -> Result<Asked, CommandError> {
        let peek = self.apply(now, Operation::Peek(self.request.cost))?;
        if !peek.allowed() {
            return self.take(now);
        }
        let turn = turn.unwrap_or(self.request.deadline);
        Ok(Asked::Denied(denied(peek, until(now, turn).max(Duration::from_micros(1)))))
    }

    /// When the request would pass if those ahead went first and nothing else came, or a time before that;
    /// `None`: never. `id`: its number, if it stands in line already.
    fn projected(self, now: Timestamp, id: Option<u64>) -> Result<Option<Timestamp>, CommandError> {
        let policy = &self.request.rule.policy;
        let Some(entry) = state::entry(self.context, self.name, policy, now, MAX_PROJECTED_ENTRY)?
        else {
            // It is too large to be read for each request that comes.
            let peek = self.apply(now, Operation::Peek(self.request.cost))?;
            return Ok(match peek.outcome {
                Outcome::Allow { .. } => Some(now),
                Outcome::Deny { retry: Retry::After(wait) } => Some(now + wait),
                Outcome::Deny { retry: Retry::Never } => None,
            });
        };
        let observed = ObservedEntry { entry, store_time: now, local_time: now };
        Ok(lines(|lines| lines.projected(self.request, id, observed)))
    }

    fn apply(self, now: Timestamp, operation: Operation) -> Result<Decision, CommandError> {
        let moment = Moment::new(now, None);
        state::decide(self.context, self.name, &self.request.rule, operation, moment)
    }
}

/// `decision` as a denial.
fn denied(decision: Decision, retry: Duration) -> Decision {
    Decision { outcome: Outcome::Deny { retry: Retry::After(retry) }, ..decision }
}

/// From `now` to `then`; zero if it is past.
fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::from_micros(then.as_micros().saturating_sub(now.as_micros()))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
