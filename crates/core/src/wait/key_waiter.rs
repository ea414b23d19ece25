//! A request that waits for one key as a state machine.

use std::time::Duration;

use super::request::{KeyRequest, ObservedEntry, peeks_first};
use crate::{Answer, Decision, Operation, Outcome, Retry, Source, Timestamp, reached};

/// An event for a waiting request.
#[derive(Debug)]
pub(super) enum KeyEvent {
    /// The request has arrived.
    Start,
    /// The time to sleep is over, or the request was woken earlier.
    Woken,
    /// The answer to the last operation. With a fallback decision, nothing is charged.
    Answered(Answer),
    /// The state of the key; `None` if it is larger than
    /// [`MAX_OBSERVED_ENTRY`](super::MAX_OBSERVED_ENTRY) or cannot be read.
    Observed(Option<ObservedEntry>),
    /// No request waits any longer: this one is denied, unless it passes immediately.
    Stopped,
}

/// The next step of the caller, to report with the next [`KeyEvent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyStep {
    /// Apply the operation to the key, under the policy of the request.
    Apply(Operation<'static>),
    /// Read the state of the key. A waiter without a queue may be given `None`.
    Observe,
    /// Sleep until then, or until woken. A caller may always wake it earlier.
    SleepUntil(Timestamp),
    /// Answer the request.
    Done(Answer),
}

/// A request that waits for one key: in its queue, or without one. `now` is by the clock that the deadline refers to; for an
/// answer it is the time when the answer has arrived.
#[derive(Debug)]
pub(super) struct KeyWaiter {
    request: KeyRequest,
    mode: Mode,
    state: State,
}

/// How a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// In the queue of its key.
    Queued,
    /// By itself.
    Alone,
    /// Only for the delay of the units that it has taken.
    Once,
}

#[derive(Clone, Debug)]
enum State {
    New,
    /// An operation is being applied.
    Applying(Operation<'static>, Purpose),
    /// The state of the key is being read, on arrival or (`is_last`) for the denial.
    Observing {
        is_last: bool,
    },
    /// It sleeps until it may pass, until it is the head, or until its deadline.
    Waiting,
    /// Its units are charged, unless by a fallback decision, for a departure to come.
    Departing {
        at: Timestamp,
        answer: Answer,
    },
    Done(Answer),
}

/// Why an operation is applied.
#[derive(Clone, Debug)]
enum Purpose {
    /// It assigns the departure.
    Reserve,
    /// The head of the queue queries the store.
    Head,
    /// It was sent then, after a peek that allows the request. If another process comes between the two, the request waits
    /// again.
    Peeked { sent: Timestamp },
    /// It was sent then, and settles whether the request passes.
    Last { sent: Timestamp },
    /// The expected time of passing, where the state of the key is not read.
    PassTime { is_last: bool },
    /// A denial is due. A request that would pass out of turn is denied until `pass_time`.
    Deny { pass_time: Option<Timestamp> },
    /// The request departs: reads the current state of the key.
    Depart { reserved: Answer },
    /// A departure is given back; the request is denied so.
    Return(Answer),
}

impl KeyWaiter {
    /// A waiter for `WaitQueues::enqueue`.
    pub(super) const fn queued(request: KeyRequest) -> Self {
        Self { request, mode: Mode::Queued, state: State::New }
    }

    /// A waiter without a queue. It reserves its units where the policy allows that; otherwise it competes
    /// with other requests each time that it may pass.
    pub(super) const fn alone(request: KeyRequest) -> Self {
        Self { request, mode: Mode::Alone, state: State::New }
    }

    /// A waiter that takes once, and waits only for the delay of a `leaky-queue`, whatever its deadline.
    pub(super) const fn once(request: KeyRequest) -> Self {
        Self { request, mode: Mode::Once, state: State::New }
    }

    /// The request.
    pub(super) const fn request(&self) -> &KeyRequest {
        &self.request
    }

    /// The next step of a waiter without a queue.
    ///
    /// # Panics
    /// The event is no answer to the last step.
    pub(super) fn poll(&mut self, now: Timestamp, event: KeyEvent) -> KeyStep {
        match event {
            KeyEvent::Observed(_) => self.observed(None),
            event => self.advance(now, event, true),
        }
    }

    /// The operation that returns the units charged for a departure. `None` if nothing was charged, and if an
    /// operation is pending whose answer has not arrived.
    pub(super) fn cancel(&self) -> Option<Operation<'static>> {
        match &self.state {
            State::Departing { answer, .. }
            | State::Applying(_, Purpose::Depart { reserved: answer }) => {
                reached!(DepartureIsCancelled);
                self.refund(answer)
            }
            _ => None,
        }
    }

    /// The operation that gives back what `answer` has charged.
    fn refund(&self, answer: &Answer) -> Option<Operation<'static>> {
        (answer.source != Source::Fallback).then_some(Operation::Refund(self.request.cost))
    }

    /// Whether it reserves its departure instead of queueing.
    pub(super) fn reserves(&self) -> bool {
        match self.mode {
            _ if self.request.holds => false,
            Mode::Queued => self.request.departs(),
            Mode::Alone => self.request.policy.can_reserve(),
            Mode::Once => false,
        }
    }

    /// Whether its units are assigned, so that it need not be queued.
    pub(super) const fn has_passed(&self) -> bool {
        match &self.state {
            State::Departing { .. } => true,
            State::Done(answer) => answer.decision.allowed(),
            _ => false,
        }
    }

    /// Whether it waits in its queue for a pass.
    #[cfg(debug_assertions)]
    pub(super) fn is_to_pass(&self) -> bool {
        let waits = match &self.state {
            State::New | State::Observing { .. } | State::Waiting => true,
            State::Applying(_, purpose) => {
                !matches!(purpose, Purpose::Depart { .. } | Purpose::Return(_))
            }
            State::Departing { .. } | State::Done(_) => false,
        };
        waits && !self.reserves()
    }

    /// The operation that is being applied.
    pub(super) const fn operation(&self) -> Option<Operation<'static>> {
        match self.state {
            State::Applying(operation, _) => Some(operation),
            _ => None,
        }
    }

    /// The next step after any event but an observation.
    pub(super) fn advance(&mut self, now: Timestamp, event: KeyEvent, is_head: bool) -> KeyStep {
        match (self.state.clone(), event) {
            (State::New, KeyEvent::Start) if self.reserves() => self.reserve(now),
            (State::New, KeyEvent::Start) if self.mode == Mode::Once => self.take(now),
            (State::New, KeyEvent::Start) if is_head => self.attempt(),
            (State::New, KeyEvent::Start) if self.request.holds && now < self.request.deadline => {
                self.sleep_until(self.request.deadline)
            }
            (State::New, KeyEvent::Start) => self.observe(now >= self.request.deadline),
            (State::Waiting, KeyEvent::Woken) if self.reserves() => self.reserve(now),
            (State::Waiting, KeyEvent::Woken) if is_head => {
                reached!(HeadIsWokenAtDeadline if now >= self.request.deadline);
                self.attempt()
            }
            (State::Waiting, KeyEvent::Woken) if now >= self.request.deadline => self.observe(true),
            (State::Waiting, KeyEvent::Woken) => self.sleep_until(self.request.deadline),
            (State::Waiting, KeyEvent::Stopped) => {
                reached!(WaiterIsStopped);
                self.observe(true)
            }
            (State::Departing { at, .. }, KeyEvent::Woken) if now < at => KeyStep::SleepUntil(at),
            (State::Departing { answer, .. }, KeyEvent::Woken) if self.mode == Mode::Queued => {
                self.apply(Operation::Peek(0), Purpose::Depart { reserved: answer })
            }
            (State::Departing { answer, .. }, KeyEvent::Woken) => self.done(answer),
            (State::Departing { at, answer }, KeyEvent::Stopped) => {
                self.give_back(&answer, at.since(now))
            }
            (State::Applying(_, purpose), KeyEvent::Answered(answer)) => {
                self.answered(now, purpose, answer)
            }
            (state, event) => unreachable!("{event:?} does not follow {state:?}"),
        }
    }

    fn answered(&mut self, now: Timestamp, purpose: Purpose, answer: Answer) -> KeyStep {
        let deadline = self.request.deadline;
        match (purpose, answer.outcome) {
            // Another request was charged between the peek and this take, and the queue is longer now.
            (Purpose::Peeked { sent } | Purpose::Last { sent }, Outcome::Allow { delay })
                if self.mode != Mode::Once && !delay.is_zero() && sent + delay > deadline =>
            {
                reached!(PassIsGivenBackAfterDeadline);
                self.give_back(&answer, (sent + delay).since(deadline))
            }
            (
                Purpose::Reserve | Purpose::Peeked { .. } | Purpose::Last { .. },
                Outcome::Allow { .. },
            ) => self.pass(now, answer),
            // A store that is available again may grant the reservation.
            (Purpose::Reserve, Outcome::Deny { retry: Retry::After(wait) })
                if answer.source == Source::Fallback
                    && self.mode == Mode::Alone
                    && now + wait <= deadline =>
            {
                reached!(LoneWaiterOutlastsFallback);
                self.sleep_until(now + wait)
            }
            (Purpose::Head, Outcome::Allow { delay }) if peeks_first(&self.request.policy) => {
                if !delay.is_zero() && now + delay > deadline {
                    self.done(deny(&answer, delay.saturating_sub(deadline.since(now))))
                } else {
                    let take = Operation::Take(self.request.cost);
                    self.apply(take, Purpose::Peeked { sent: now })
                }
            }
            (Purpose::Head, Outcome::Allow { .. }) => self.pass(now, answer),
            (
                Purpose::Head | Purpose::Peeked { .. },
                Outcome::Deny { retry: Retry::After(wait) },
            ) if now + wait <= deadline => self.sleep_until(now + wait),
            (Purpose::Head | Purpose::Peeked { .. }, Outcome::Deny { retry: Retry::After(_) })
                if self.request.holds && now < deadline =>
            {
                self.sleep_until(deadline)
            }
            // The peek has recorded nothing.
            (Purpose::Head, Outcome::Deny { .. }) if peeks_first(&self.request.policy) => {
                self.take(now)
            }
            (Purpose::PassTime { is_last }, outcome) => {
                self.state = State::Observing { is_last };
                self.expected(match outcome {
                    Outcome::Allow { .. } => Some(now),
                    Outcome::Deny { retry: Retry::After(wait) } => Some(now + wait),
                    Outcome::Deny { retry: Retry::Never } => None,
                })
            }
            (Purpose::Deny { pass_time }, Outcome::Allow { .. }) => {
                reached!(WaiterIsDeniedThoughItWouldPass);
                let wait = pass_time.unwrap_or(deadline).since(now);
                self.done(deny(&answer, wait.max(Duration::from_micros(1))))
            }
            (Purpose::Deny { .. }, Outcome::Deny { .. }) => self.take(now),
            (Purpose::Return(denial), _) => self.done(denial),
            // The store is unavailable now, and has granted the departure.
            (Purpose::Depart { reserved }, _)
                if answer.source == Source::Fallback && reserved.source != Source::Fallback =>
            {
                self.done(departed(&reserved))
            }
            (Purpose::Depart { .. }, _)
            | (
                Purpose::Reserve | Purpose::Head | Purpose::Peeked { .. } | Purpose::Last { .. },
                Outcome::Deny { .. },
            ) => self.done(answer),
        }
    }

    /// The next step after the state of the key was read: `pass_time` is when the request would pass after those
    /// ahead of it, or a time before that (`Some(None)`: never). Without one, a peek decides.
    pub(super) fn observed(&mut self, pass_time: Option<Option<Timestamp>>) -> KeyStep {
        match (self.state.clone(), pass_time) {
            (State::Observing { .. }, Some(pass_time)) => self.expected(pass_time),
            (State::Observing { is_last }, None) => {
                let peek = Operation::Peek(self.request.cost);
                self.apply(peek, Purpose::PassTime { is_last })
            }
            (state, _) => unreachable!("an observation does not follow {state:?}"),
        }
    }

    fn expected(&mut self, pass_time: Option<Timestamp>) -> KeyStep {
        let deadline = self.request.deadline;
        let is_last = matches!(self.state, State::Observing { is_last: true });
        if is_last || pass_time.is_none_or(|at| at > deadline) {
            let peek = Operation::Peek(self.request.cost);
            reached!(WaiterIsDeniedOnArrival if !is_last);
            return self.apply(peek, Purpose::Deny { pass_time });
        }
        self.sleep_until(deadline)
    }

    fn reserve(&mut self, now: Timestamp) -> KeyStep {
        let KeyRequest { cost, deadline, .. } = self.request;
        let reserve = Operation::Reserve { cost, max_wait: deadline.since(now) };
        self.apply(reserve, Purpose::Reserve)
    }

    /// An attempt as the head of the queue.
    fn attempt(&mut self) -> KeyStep {
        let cost = self.request.cost;
        let peeks = peeks_first(&self.request.policy);
        let operation = if peeks { Operation::Peek(cost) } else { Operation::Take(cost) };
        self.apply(operation, Purpose::Head)
    }

    fn take(&mut self, now: Timestamp) -> KeyStep {
        self.apply(Operation::Take(self.request.cost), Purpose::Last { sent: now })
    }

    /// Its units are assigned: holds the request until its departure.
    fn pass(&mut self, now: Timestamp, answer: Answer) -> KeyStep {
        if answer.delay().is_zero() {
            return self.done(answer);
        }
        let at = now + answer.delay();
        reached!(WaiterIsHeldUntilDeparture);
        self.state = State::Departing { at, answer };
        KeyStep::SleepUntil(at)
    }

    /// Denies a request whose units are charged, after it has given them back.
    fn give_back(&mut self, answer: &Answer, retry: Duration) -> KeyStep {
        let refund = self.refund(answer);
        let denial = deny(answer, retry);
        match refund {
            Some(refund) => self.apply(refund, Purpose::Return(denial)),
            None => self.done(denial),
        }
    }

    fn apply(&mut self, operation: Operation<'static>, purpose: Purpose) -> KeyStep {
        self.state = State::Applying(operation, purpose);
        KeyStep::Apply(operation)
    }

    fn observe(&mut self, is_last: bool) -> KeyStep {
        self.state = State::Observing { is_last };
        KeyStep::Observe
    }

    fn sleep_until(&mut self, at: Timestamp) -> KeyStep {
        self.state = State::Waiting;
        KeyStep::SleepUntil(at)
    }

    fn done(&mut self, answer: Answer) -> KeyStep {
        debug_assert!(!matches!(self.state, State::Done(_)), "a request is answered twice");
        self.state = State::Done(answer.clone());
        KeyStep::Done(answer)
    }
}

/// The answer at the departure that `reserved` has granted, where the state of the key then is unknown.
fn departed(reserved: &Answer) -> Answer {
    let outcome = Outcome::Allow { delay: Duration::ZERO };
    let reset_after = reserved.reset_after.saturating_sub(reserved.delay());
    Answer::new(Decision { outcome, reset_after, ..reserved.decision }, reserved.source)
}

/// `answer` as a denial.
fn deny(answer: &Answer, retry: Duration) -> Answer {
    let outcome = Outcome::Deny { retry: Retry::After(retry) };
    Answer::new(Decision { outcome, ..answer.decision }, answer.source)
}
