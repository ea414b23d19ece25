//! A request that waits for several keys as a state machine: all of them pass, or none.
//!
//! The request waits in the queue of the key that denies it for the longest time. Once that key allows it and another one
//! denies it, it goes to the end of that other queue. It is in one queue at most, and holds no units while it waits:
//! therefore two requests that share keys cannot block each other.
//!
//! Invariants:
//! - a denied request records its denial (`count=all`) once, when it is answered. If another process comes between a
//!   peek and the operation that follows it, that denial is recorded too, and the request goes on waiting;
//! - it is denied at its deadline and not before, unless it can never pass: a settle may let it pass at any time;
//! - a hold that is open on every key already is answered by the first attempt.

use std::{mem, time::Duration};

use super::{
    queues::Ticket,
    request::{WaitRequest, peeks_first},
    waiter::{Event, Step},
};
use crate::{Answer, Operation, Policy, Retry, Timestamp};

/// An event for a request that waits for several keys.
#[derive(Debug)]
pub enum MultiKeyEvent {
    /// The request has arrived.
    Start,
    /// The answer to the last operation.
    Answered(Answer),
    /// Whether the hold is open on every key.
    IsOpen(bool),
    /// The request is in the queue.
    Entered(Ticket),
    /// The step of the queue.
    Queued(Step),
    /// The time to sleep is over, or the request was woken earlier.
    Woken,
    /// No request waits any longer: this one is denied, unless it passes immediately. It follows only
    /// [`MultiKeyStep::SleepUntil`].
    Stopped,
}

/// The next step of the caller, to report with the next [`MultiKeyEvent`].
#[must_use]
#[derive(Debug)]
pub enum MultiKeyStep {
    /// Apply [`MultiKeyWaiter::operation`] to the keys.
    Apply,
    /// Find out whether the hold of this id is open on every key.
    CheckOpen(Box<[u8]>),
    /// Leave the present queue, if any, and enter that of a key with this request.
    Enter {
        /// The index of the key.
        key: usize,
        /// The request for [`WaitQueues::enqueue`](super::WaitQueues::enqueue).
        request: WaitRequest,
    },
    /// Poll the queue ([`WaitQueues::poll`](super::WaitQueues::poll)), at the same time as this request.
    Poll(Ticket, Event),
    /// Sleep until then, or until woken, in the queue of the ticket. A caller may always wake it earlier.
    SleepUntil(Ticket, Timestamp),
    /// Leave the queue, and answer the request.
    Done(Answer),
}

/// A request for units of several keys that waits. It has no timer, reads no clock and has no queue: `now` is an argument,
/// by the clock that the deadline refers to, and the caller enters and leaves the queues. For an answer, `now` is the time
/// when the answer has arrived.
///
/// A caller calls [`poll`](Self::poll) until the step is [`MultiKeyStep::Done`]. If the client leaves before that, the
/// caller removes the request from the queue that it is in: nothing is charged, and nothing is to be given back.
///
/// ```
/// use sluicegate_core::{
///     EntryOperation, Operation, Policy, Timestamp, apply_all,
///     wait::{MultiKeyEvent, MultiKeyStep, MultiKeyWaiter, WaitQueues},
/// };
///
/// let (user, tenant): (Policy, Policy) = ("gcra:1/10s".parse()?, "gcra:1/30s".parse()?);
/// let (mut entries, mut now) = ([None, None], Timestamp::EPOCH);
/// let mut operate = |operation: Operation<'_>, now| {
///     let ([first, second], operation) = (&mut entries, operation.with_cost(1));
///     let takes = &mut [
///         EntryOperation { policy: &user, entry: first, operation },
///         EntryOperation { policy: &tenant, entry: second, operation },
///     ];
///     apply_all(takes, now).expect("two keys")
/// };
/// assert!(operate(Operation::Take(1), now).allowed());
///
/// let (mut queues, mut ticket) = (WaitQueues::default(), None);
/// let takes = [(user.clone(), 1), (tenant.clone(), 1)];
/// let timeout = std::time::Duration::from_secs(60);
/// let mut waiter = MultiKeyWaiter::new(takes, Operation::Take(1), timeout);
/// let mut event = MultiKeyEvent::Start;
/// let answer = loop {
///     event = match waiter.poll(now, event) {
///         MultiKeyStep::Apply => {
///             MultiKeyEvent::Answered(operate(waiter.operation(), now))
///         }
///         MultiKeyStep::CheckOpen(_) => MultiKeyEvent::IsOpen(false),
///         MultiKeyStep::Enter { key, request } => {
///             ticket.take().and_then(|ticket| queues.remove(ticket));
///             MultiKeyEvent::Entered(*ticket.insert(queues.enqueue(key, request, ())?))
///         }
///         MultiKeyStep::Poll(ticket, event) => {
///             MultiKeyEvent::Queued(queues.poll(ticket, now, event).step)
///         }
///         MultiKeyStep::SleepUntil(_, then) => {
///             now = then; // a driver sleeps here
///             MultiKeyEvent::Woken
///         }
///         MultiKeyStep::Done(answer) => break answer,
///     }
/// };
/// assert!(answer.decision.allowed());
/// assert_eq!(now.as_micros(), 30_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MultiKeyWaiter {
    /// The policy of each key, and the units to take or hold.
    takes: Box<[(Policy, u32)]>,
    /// The id of the hold and its lifetime, if units are held.
    hold: Option<(Box<[u8]>, Option<Duration>)>,
    timeout: Duration,
    /// Known once it has started.
    deadline: Timestamp,
    /// The index of the key in whose queue it is.
    position: Option<(usize, Ticket)>,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    /// A peek comes before an operation whose denial is recorded.
    Peeking,
    /// The peek denies the request. If the hold is open on every key, it is allowed nevertheless.
    Checking(Answer),
    /// `is_last`: the answer is final.
    Applying {
        is_last: bool,
    },
    /// It goes to the queue of the key of that index, which denies it.
    Entering(usize),
    /// The queue decides what comes next.
    Polling(Ticket),
    Sleeping(Ticket),
    Done,
}

impl MultiKeyWaiter {
    /// A request that takes or holds units of several keys under these policies, for up to `timeout` after
    /// [`MultiKeyEvent::Start`].
    #[must_use]
    pub fn new(
        takes: impl IntoIterator<Item = (Policy, u32)>,
        operation: Operation<'_>,
        timeout: Duration,
    ) -> Self {
        let (takes, deadline) = (takes.into_iter().collect(), Timestamp::EPOCH);
        let hold = match operation {
            Operation::Hold { id, ttl, .. } => Some((id.into(), ttl)),
            _ => None,
        };
        Self { takes, hold, timeout, deadline, position: None, state: State::New }
    }

    /// The operation of [`MultiKeyStep::Apply`], without the cost of each key.
    #[must_use]
    pub fn operation(&self) -> Operation<'_> {
        match (&self.state, &self.hold) {
            (State::Peeking, _) => Operation::Peek(0),
            (_, Some((id, ttl))) => Operation::Hold { id, cost: 0, ttl: *ttl },
            (_, None) => Operation::Take(0),
        }
    }

    /// The next step.
    ///
    /// # Panics
    /// The event is no answer to the last step.
    pub fn poll(&mut self, now: Timestamp, event: MultiKeyEvent) -> MultiKeyStep {
        use MultiKeyEvent::{Answered, Entered, IsOpen, Queued, Start, Stopped, Woken};
        match (mem::replace(&mut self.state, State::Done), event) {
            (State::New, Start) => {
                self.deadline = now + self.timeout;
                self.attempt()
            }
            (State::Peeking, Answered(peek)) if peek.decision.allowed() => self.apply(false),
            (State::Peeking, Answered(denial)) => match &self.hold {
                Some((id, _)) => {
                    self.state = State::Checking(denial);
                    MultiKeyStep::CheckOpen(id.clone())
                }
                None => self.denied(now, denial, false),
            },
            (State::Checking(_), IsOpen(true)) => self.apply(false),
            (State::Checking(denial), IsOpen(false)) => self.denied(now, denial, false),
            (State::Applying { is_last: false }, Answered(denial))
                if !denial.decision.allowed() =>
            {
                self.denied(now, denial, true)
            }
            (State::Applying { .. }, Answered(answer)) => MultiKeyStep::Done(answer),
            (State::Entering(key), Entered(ticket)) => {
                self.position = Some((key, ticket));
                self.poll_queue(ticket, Event::Start)
            }
            // Also after it has entered the queue: a change since the last attempt has not woken it.
            (State::Polling(_), Queued(Step::Apply(_))) => self.attempt(),
            (State::Polling(ticket), Queued(Step::SleepUntil(then))) => {
                self.state = State::Sleeping(ticket);
                MultiKeyStep::SleepUntil(ticket, then)
            }
            (State::Sleeping(ticket), Woken) if now < self.deadline => {
                self.poll_queue(ticket, Event::Woken)
            }
            // What has happened since the last attempt may let it pass.
            (State::Sleeping(_), Woken | Stopped) => self.apply(true),
            (state, event) => unreachable!("{event:?} does not follow {state:?}"),
        }
    }

    /// An attempt that records no denial.
    fn attempt(&mut self) -> MultiKeyStep {
        if !self.takes.iter().any(|(policy, _)| peeks_first(policy)) {
            return self.apply(false);
        }
        self.state = State::Peeking;
        MultiKeyStep::Apply
    }

    fn apply(&mut self, is_last: bool) -> MultiKeyStep {
        self.state = State::Applying { is_last };
        MultiKeyStep::Apply
    }

    /// The next step after a denial. `is_applied`: by an operation, which has recorded it, and not by a peek.
    fn denied(&mut self, now: Timestamp, denial: Answer, is_applied: bool) -> MultiKeyStep {
        let may_pass = denial.decision.retry() != Some(Retry::Never) && now < self.deadline;
        match self.position {
            _ if !may_pass && is_applied => MultiKeyStep::Done(denial),
            _ if !may_pass => self.apply(true),
            Some((key, ticket)) if key == denial.key => {
                let answer = Answer::new(denial.decision, denial.source);
                self.poll_queue(ticket, Event::Answered(answer))
            }
            _ => {
                self.state = State::Entering(denial.key);
                let (policy, cost) = &self.takes[denial.key];
                // In its queue, nothing but its deadline denies it.
                let request = WaitRequest::hold(policy.clone(), *cost, self.deadline);
                MultiKeyStep::Enter { key: denial.key, request }
            }
        }
    }

    fn poll_queue(&mut self, ticket: Ticket, event: Event) -> MultiKeyStep {
        self.state = State::Polling(ticket);
        MultiKeyStep::Poll(ticket, event)
    }
}
