//! A request that waits, for one key or for several, as a state machine: all of its keys pass, or none.
//!
//! A request for several keys waits in the queue of the key that denies it for the longest time. Once that key allows it
//! and another one denies it, it goes to the end of that other queue. It is in one queue at most, and holds no units while
//! it waits: therefore two requests that share keys cannot block each other.
//!
//! A settle may free units at any time, and a store does not announce that. Therefore a hold, or a request for several keys,
//! that waits without a queue repeats its attempt at a pace that adapts: the longer it has waited, the longer it pauses.
//!
//! Invariants:
//! - a denied request records its denial (`count=all`) once, when it is answered. If another process comes between a
//!   peek and the operation that follows it, that denial is recorded too, and the request goes on waiting;
//! - a hold, and a request for several keys, is denied at its deadline and not before, unless it can never pass;
//! - a hold that is open on every key already is answered before those that wait for its units.

use std::{mem, time::Duration};

use smallvec::SmallVec;

use super::{
    key_waiter::{KeyEvent, KeyStep, KeyWaiter},
    request::{KeyRequest, ObservedEntry, QueueFull, Ticket, peeks_first},
};
use crate::{Answer, Operation, Policy, Retry, Source, Timestamp, reached};

/// The shortest and the longest pause between two attempts without a queue.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// An event for a waiting request.
#[derive(Debug)]
pub enum Event {
    /// The request has arrived.
    Start,
    /// The time to sleep is over, or the request was woken earlier.
    Woken,
    /// The answer to the last operations. With a fallback decision, nothing is charged.
    Answered(Answer),
    /// Whether the hold is open on every key.
    IsOpen(bool),
    /// The state of the only key; `None` if it is larger than [`MAX_OBSERVED_ENTRY`](super::MAX_OBSERVED_ENTRY) or cannot be
    /// read.
    Observed(Option<ObservedEntry>),
    /// No request waits any longer: this one is denied, unless it passes immediately. It follows only
    /// [`Step::SleepUntil`].
    Stopped,
}

/// The next step of the caller, to report with the next [`Event`].
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Apply [`Waiter::operation`] to each key, to all of them or to none.
    Apply,
    /// Find out whether the hold is open on every key.
    CheckOpen,
    /// Read the state of the only key.
    Observe,
    /// Sleep until then, or until woken. A caller may always wake it earlier.
    SleepUntil(Timestamp),
    /// Answer the request.
    Done(Answer),
    /// Reject the request: too many wait.
    Reject(QueueFull),
}

/// A waiting request: takes, or holds under one id, of one key or of several. It has no timer and reads no clock: `now` is an
/// argument, by any clock, and for an answer it is the time when the answer has arrived.
///
/// A caller calls [`WaitQueues::poll`](super::WaitQueues::poll), or [`poll`](Self::poll) for a waiter without a queue, until
/// the step is [`Step::Done`]. If the client leaves before that, it applies what
/// [`WaitQueues::remove`](super::WaitQueues::remove) or [`cancel`](Self::cancel) returns.
///
/// ```
/// use sluicegate_core::{
///     EntryOperation, Operation, Policy, Timestamp, apply_all,
///     wait::{Event, Step, WaitQueues, Waiter},
/// };
///
/// let [user, tenant]: [Policy; 2] = ["gcra:1/10s".parse()?, "gcra:1/30s".parse()?];
/// let (mut entries, mut now) = ([None, None], Timestamp::EPOCH);
/// let mut operate = |[one, two]: [Operation<'_>; 2], now| {
///     let [first, second] = &mut entries;
///     let operations = &mut [
///         EntryOperation { policy: &user, entry: first, operation: one },
///         EntryOperation { policy: &tenant, entry: second, operation: two },
///     ];
///     apply_all(operations, now).expect("two keys")
/// };
/// assert!(operate([Operation::Take(1); 2], now).allowed());
///
/// let mut queues = WaitQueues::default();
/// let takes = [("user", user.clone(), Operation::Take(1)), ("tenant", tenant.clone(), Operation::Take(1))];
/// let mut waiter = Waiter::queued_all(takes, std::time::Duration::from_secs(60));
/// let mut event = Event::Start;
/// let answer = loop {
///     event = match queues.poll(&mut waiter, now, event, || ()).step {
///         Step::Apply => {
///             Event::Answered(operate([waiter.operation(0), waiter.operation(1)], now))
///         }
///         Step::CheckOpen => Event::IsOpen(false),
///         Step::Observe => Event::Observed(None),
///         Step::SleepUntil(then) => {
///             now = then; // a driver sleeps here
///             Event::Woken
///         }
///         Step::Done(answer) => break answer,
///         Step::Reject(full) => Err(full)?,
///     }
/// };
/// let _ = queues.remove(&mut waiter);
/// assert!(answer.allowed());
/// assert_eq!(now.as_micros(), 30_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Waiter<K = ()> {
    keys: SmallVec<[WaitingKey<K>; 1]>,
    /// If units are held.
    hold: Option<WaitingHold>,
    /// Whether it is a request for one key, and not one for several of which there is one.
    is_single: bool,
    mode: Mode,
    timeout: Duration,
    /// Known once it has started.
    deadline: Timestamp,
    /// The index of the key in whose queue it is.
    position: Option<(usize, Ticket)>,
    state: State,
    /// Whether its answer may let other requests for its keys pass, which are still to be woken.
    answered: Option<bool>,
}

#[derive(Debug)]
struct WaitingKey<K> {
    key: K,
    policy: Policy,
    cost: u32,
}

#[derive(Debug)]
struct WaitingHold {
    id: Box<[u8]>,
    ttl: Option<Duration>,
    /// Whether the hold may be open, so that a peek could be denied by it.
    may_be_open: bool,
}

/// How a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// In the queue of a key.
    Queued,
    /// By itself.
    Alone,
    /// By itself, only for the delay of the units that it has taken.
    Once,
}

#[derive(Debug)]
enum State {
    New,
    /// A take of one key without a queue.
    Single(KeyWaiter),
    /// The queue of the only key decides what comes next. This operation is being applied.
    InQueue(Option<Operation<'static>>),
    /// Before the request for one key enters its queue: the hold may be open.
    Arriving,
    /// A hold that seemed to be open on the only key is applied.
    Repeating,
    /// A peek comes before an operation whose denial is recorded.
    Peeking,
    /// The peek denies the request. If the hold is open on every key, it is allowed nevertheless.
    Checking(Answer),
    /// `is_last`: the answer is final.
    Applying {
        is_last: bool,
    },
    Sleeping,
    Done,
}

/// What comes next: a step of the caller, or of the queues.
#[derive(Debug)]
pub(super) enum Move {
    Step(Step),
    /// Leave the present queue, if any, and enter that of the key of that index.
    Enter(usize),
    /// Poll the queue that it is in.
    Poll(KeyEvent),
}

impl<K> Waiter<K> {
    /// A request for one key in [`WaitQueues`](super::WaitQueues), which waits for up to `timeout` after [`Event::Start`]: a
    /// take or a hold. A take that cannot pass in time is denied at once, and the delay of a `leaky-queue` is waited for.
    #[must_use]
    pub fn queued(key: K, policy: Policy, operation: Operation<'_>, timeout: Duration) -> Self {
        Self::new([(key, policy, operation)], timeout, Mode::Queued)
    }

    /// A request for several keys in [`WaitQueues`](super::WaitQueues), of all of them or of none: takes, or holds under one
    /// id. It is denied at its deadline. The delay of a `leaky-queue` is in the answer, and is not waited for.
    #[must_use]
    pub fn queued_all<'a>(
        operations: impl IntoIterator<Item = (K, Policy, Operation<'a>)>,
        timeout: Duration,
    ) -> Self {
        Self { is_single: false, ..Self::new(operations, timeout, Mode::Queued) }
    }

    fn new<'a>(
        operations: impl IntoIterator<Item = (K, Policy, Operation<'a>)>,
        timeout: Duration,
        mode: Mode,
    ) -> Self {
        let mut hold = None;
        let keys = operations.into_iter().map(|(key, policy, operation)| {
            if let Operation::Hold { id, ttl, .. } = operation {
                hold = Some(WaitingHold { id: id.into(), ttl, may_be_open: false });
            }
            WaitingKey { key, policy, cost: operation.cost() }
        });
        let keys: SmallVec<[_; 1]> = keys.collect();
        Self {
            is_single: keys.len() == 1,
            keys,
            hold,
            mode,
            timeout,
            deadline: Timestamp::EPOCH,
            position: None,
            state: State::New,
            answered: None,
        }
    }

    /// The number of keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// A key, by its index.
    #[must_use]
    pub fn key(&self, index: usize) -> &K {
        &self.keys[index].key
    }

    /// The operation of [`Step::Apply`] on a key, by its index.
    #[must_use]
    pub fn operation(&self, index: usize) -> Operation<'_> {
        match &self.state {
            State::Peeking => Operation::Peek(self.keys[index].cost),
            State::InQueue(Some(operation)) if !matches!(operation, Operation::Take(_)) => {
                *operation
            }
            State::Single(waiter) => waiter.operation().unwrap_or(Operation::Peek(0)),
            _ => self.attempted(index),
        }
    }

    /// The take or the hold of a key.
    #[must_use]
    pub fn attempted(&self, index: usize) -> Operation<'_> {
        let cost = self.keys[index].cost;
        match &self.hold {
            Some(WaitingHold { id, ttl, .. }) => Operation::Hold { id, cost, ttl: *ttl },
            None => Operation::Take(cost),
        }
    }

    /// The last moment at which the client can use a pass, once it has started.
    #[must_use]
    pub const fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// The ticket of the queue that it is in.
    #[must_use]
    pub fn ticket(&self) -> Option<Ticket> {
        self.position.map(|(_, ticket)| ticket)
    }

    /// The index of the key in whose queue it is.
    #[cfg(test)]
    pub(super) fn position(&self) -> Option<usize> {
        self.position.map(|(index, _)| index)
    }

    /// The request for the queue of a key. Of several keys, and of a hold, nothing but the deadline denies it.
    pub(super) fn request(&self, index: usize) -> KeyRequest {
        let WaitingKey { policy, cost, .. } = &self.keys[index];
        let holds = self.hold.is_some() || !self.is_single;
        KeyRequest { policy: policy.clone(), cost: *cost, deadline: self.deadline, holds }
    }

    pub(super) fn entered(&mut self, index: usize, ticket: Ticket) {
        debug_assert!(self.position.is_none(), "a waiter is in two queues");
        self.position = Some((index, ticket));
    }

    /// It leaves its queue.
    pub(super) fn leave(&mut self) -> Option<Ticket> {
        self.position.take().map(|(_, ticket)| ticket)
    }

    /// The operations of a request that was answered, if others that wait for its keys do not know of them, once.
    pub(super) fn take_effects(
        &mut self,
    ) -> impl Iterator<Item = (&K, &Policy, Operation<'_>, bool)> {
        // The queue of one key has followed its takes.
        let is_known = self.is_single && self.hold.is_none();
        let answered = self.answered.take().filter(|_| !is_known);
        let this = &*self;
        answered.into_iter().flat_map(move |is_allowed| {
            let keys = this.keys.iter().enumerate();
            keys.map(move |(index, it)| (&it.key, &it.policy, this.attempted(index), is_allowed))
        })
    }

    /// What comes next after an event. `has_queue`: whether others wait for its first key.
    pub(super) fn advance(&mut self, now: Timestamp, event: Event, has_queue: bool) -> Move {
        match (mem::replace(&mut self.state, State::Done), event) {
            (State::New, Event::Start) => {
                self.deadline = now + self.timeout;
                self.start(now, has_queue)
            }
            (State::Single(mut waiter), event) => {
                let step = match event {
                    Event::Woken => waiter.poll(now, KeyEvent::Woken),
                    Event::Answered(answer) => waiter.poll(now, KeyEvent::Answered(answer)),
                    Event::Stopped => waiter.poll(now, KeyEvent::Stopped),
                    event => unreachable!("{event:?} does not follow {waiter:?}"),
                };
                self.single(now, waiter, step)
            }
            (State::InQueue(Some(_)), Event::Answered(answer)) => {
                self.poll_queue(KeyEvent::Answered(answer))
            }
            (State::InQueue(None), Event::Observed(observed)) => {
                self.poll_queue(KeyEvent::Observed(observed))
            }
            (State::InQueue(None), Event::Woken) => self.poll_queue(KeyEvent::Woken),
            (State::InQueue(None), Event::Stopped) => self.poll_queue(KeyEvent::Stopped),
            (State::Arriving, Event::IsOpen(true)) => {
                reached!(WaitingHoldIsOpenAlready);
                self.apply(State::Repeating)
            }
            (State::Arriving, Event::IsOpen(false)) => self.enter(0),
            (State::Repeating, Event::Answered(answer)) if answer.allowed() => self.done(answer),
            (State::Repeating, Event::Answered(_)) => self.enter(0),
            (State::Peeking, Event::Answered(peek)) if peek.allowed() => {
                self.apply(State::Applying { is_last: false })
            }
            (State::Peeking, Event::Answered(denial)) => match (self.mode, &self.hold) {
                (Mode::Queued, Some(_)) => {
                    self.state = State::Checking(denial);
                    Move::Step(Step::CheckOpen)
                }
                _ => self.denied(now, denial, false),
            },
            (State::Checking(_), Event::IsOpen(true)) => {
                self.apply(State::Applying { is_last: false })
            }
            (State::Checking(denial), Event::IsOpen(false)) => self.denied(now, denial, false),
            (State::Applying { is_last: false }, Event::Answered(denial)) if !denial.allowed() => {
                reached!(WaiterIsOvertakenAfterPeek if self.keys.iter().any(|it| peeks_first(&it.policy)));
                self.denied(now, denial, true)
            }
            (State::Applying { .. }, Event::Answered(answer)) => self.done(answer),
            (State::Sleeping, Event::Woken) if self.mode != Mode::Queued => self.attempt(now),
            (State::Sleeping, Event::Woken) if now < self.deadline => {
                self.poll_queue(KeyEvent::Woken)
            }
            // What has happened since the last attempt may let it pass.
            (State::Sleeping, Event::Woken | Event::Stopped) => {
                self.apply(State::Applying { is_last: true })
            }
            (state, event) => unreachable!("{event:?} does not follow {state:?}"),
        }
    }

    fn start(&mut self, now: Timestamp, has_queue: bool) -> Move {
        if !self.is_single {
            return self.attempt(now);
        }
        let WaitingKey { policy, cost, .. } = &self.keys[0];
        let request = self.request(0);
        match (self.mode, &self.hold) {
            _ if *cost == 0 => self.apply(State::Applying { is_last: true }),
            (Mode::Queued, Some(_)) if has_queue || peeks_first(policy) => {
                self.state = State::Arriving;
                Move::Step(Step::CheckOpen)
            }
            (Mode::Queued, _) => self.enter(0),
            (_, Some(_)) => self.attempt(now),
            (Mode::Alone, None) => self.start_single(now, KeyWaiter::alone(request)),
            (Mode::Once, None) => self.start_single(now, KeyWaiter::once(request)),
        }
    }

    fn start_single(&mut self, now: Timestamp, mut waiter: KeyWaiter) -> Move {
        let step = waiter.poll(now, KeyEvent::Start);
        self.single(now, waiter, step)
    }

    /// The step of a take without a queue.
    fn single(&mut self, now: Timestamp, mut waiter: KeyWaiter, mut step: KeyStep) -> Move {
        if step == KeyStep::Observe {
            step = waiter.poll(now, KeyEvent::Observed(None));
        }
        self.state = State::Single(waiter);
        match step {
            KeyStep::Apply(_) | KeyStep::Observe => Move::Step(Step::Apply),
            KeyStep::SleepUntil(then) => Move::Step(Step::SleepUntil(then)),
            KeyStep::Done(answer) => Move::Step(Step::Done(answer)),
        }
    }

    /// An attempt that records no denial.
    fn attempt(&mut self, now: Timestamp) -> Move {
        let may_be_open = self.hold.as_ref().is_some_and(|it| it.may_be_open);
        let peeks = self.keys.iter().any(|it| peeks_first(&it.policy))
            && (self.mode == Mode::Queued || now < self.deadline && !may_be_open);
        self.apply(if peeks { State::Peeking } else { State::Applying { is_last: false } })
    }

    fn apply(&mut self, state: State) -> Move {
        self.state = state;
        Move::Step(Step::Apply)
    }

    fn done(&mut self, answer: Answer) -> Move {
        debug_assert!(self.answered.is_none(), "a request is answered twice");
        self.answered = Some(answer.allowed());
        Move::Step(Step::Done(answer))
    }

    fn enter(&mut self, key: usize) -> Move {
        self.state = State::InQueue(None);
        Move::Enter(key)
    }

    fn poll_queue(&mut self, event: KeyEvent) -> Move {
        self.state = State::InQueue(None);
        Move::Poll(event)
    }

    /// What comes next after a denial. `is_applied`: by an operation, which has recorded it, and not by a peek.
    fn denied(&mut self, now: Timestamp, denial: Answer, is_applied: bool) -> Move {
        if self.mode != Mode::Queued {
            return self.pause(now, denial, is_applied);
        }
        let may_pass = denial.retry() != Some(Retry::Never) && now < self.deadline;
        match self.position {
            _ if !may_pass && is_applied => self.done(denial),
            _ if !may_pass => self.apply(State::Applying { is_last: true }),
            Some((key, _)) if key == denial.key => self.poll_queue(KeyEvent::Answered(denial)),
            _ => self.enter(denial.key),
        }
    }

    /// What comes next after a denial without a queue.
    fn pause(&mut self, now: Timestamp, denial: Answer, is_applied: bool) -> Move {
        if let Some(hold) = &mut self.hold {
            // If a denial is not the store's own, the store may have made the hold.
            hold.may_be_open = is_applied && denial.source != Source::Store;
        }
        let left = self.deadline.since(now);
        match denial.retry() {
            Some(Retry::After(after)) if !left.is_zero() => {
                let waited = self.timeout.saturating_sub(left);
                reached!(LoneWaiterPauses);
                let pause = (waited / 8).clamp(MIN_PAUSE, MAX_PAUSE).min(after).min(left);
                self.state = State::Sleeping;
                Move::Step(Step::SleepUntil(now + pause))
            }
            _ if is_applied => self.done(denial),
            _ => self.apply(State::Applying { is_last: true }),
        }
    }

    /// What comes next after a step of the queue that it is in.
    pub(super) fn follow_queue(&mut self, now: Timestamp, step: KeyStep) -> Move {
        match step {
            // Also after it has entered the queue: a change since the last attempt has not woken it.
            KeyStep::Apply(_) if !self.is_single => self.attempt(now),
            KeyStep::SleepUntil(then) if !self.is_single => {
                self.state = State::Sleeping;
                Move::Step(Step::SleepUntil(then))
            }
            KeyStep::Apply(operation) => {
                self.state = State::InQueue(Some(operation));
                Move::Step(Step::Apply)
            }
            KeyStep::SleepUntil(then) => Move::Step(Step::SleepUntil(then)),
            KeyStep::Observe => Move::Step(Step::Observe),
            KeyStep::Done(answer) => {
                self.state = State::Done;
                self.done(answer)
            }
        }
    }
}

impl Waiter {
    /// A waiter without a queue, which waits for up to `timeout` after [`Event::Start`]. A take of one key reserves its units
    /// where the policy allows that; otherwise the request competes with others each time that it may pass.
    /// `may_be_open`: whether a hold of its id may be open.
    #[must_use]
    pub fn alone<'a>(
        operations: impl IntoIterator<Item = (Policy, Operation<'a>)>,
        timeout: Duration,
        may_be_open: bool,
    ) -> Self {
        let operations = operations.into_iter().map(|(policy, operation)| ((), policy, operation));
        let mut waiter = Self::new(operations, timeout, Mode::Alone);
        if let Some(hold) = &mut waiter.hold {
            hold.may_be_open = may_be_open;
        }
        waiter
    }

    /// A waiter that takes once, and waits only for the delay of a `leaky-queue`.
    #[must_use]
    pub fn once(policy: Policy, cost: u32) -> Self {
        Self::new([((), policy, Operation::Take(cost))], Duration::ZERO, Mode::Once)
    }

    /// The next step of a waiter without a queue: [`Step::Apply`], [`Step::SleepUntil`] or [`Step::Done`].
    ///
    /// # Panics
    /// The event is no answer to the last step.
    pub fn poll(&mut self, now: Timestamp, event: Event) -> Step {
        match self.advance(now, event, false) {
            Move::Step(step) => step,
            next => unreachable!("{next:?} of a waiter without a queue"),
        }
    }

    /// The operation that returns the units charged for a departure. `None` if nothing was charged, and if an
    /// operation is pending whose answer has not arrived: what that reserves is to be returned once it has.
    #[must_use]
    pub fn cancel(&self) -> Option<Operation<'static>> {
        match &self.state {
            State::Single(waiter) => waiter.cancel(),
            _ => None,
        }
    }
}
