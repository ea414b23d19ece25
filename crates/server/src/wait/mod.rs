//! `SG.WAIT`: holding an answer back until the request passes.
//!
//! Under a policy of the gcra machine with a `leaky-queue`, the request gets its departure at once
//! (a reservation) and is held until then. Under any other, the waiters of a key stand in line, and
//! only the head asks, when it was told to; see [`sluicegate_commands::line`].
//!
//! Invariants:
//! - a waiter that is dropped, for whatever reason, leaves the line and gives back what it was
//!   assigned;
//! - one that is denied was denied by exactly one take, so that `count=all` records it once.

mod line;

use std::{cell::Cell, fmt, sync::Arc, time::Duration};

use sluicegate_commands::wait_queue::{MAX_PROJECTED_ENTRY, ObservedEntry, QueuedRequest, departs};
use sluicegate_core::{
    Answer, Decision, Entry, Operation, Outcome, Policy, PreparedPolicy, Retry, Source, StoreError,
    Timestamp,
};
use tokio::{sync::watch, time::sleep};

pub(crate) use sluicegate_commands::wait_queue::QueueFull;

pub(crate) use self::line::Lines;
use self::line::Place;
use crate::{budgets::buffers::NO_MEMORY, decide::Decider, stopping::stopped, store::error_reply};

/// A key up to this length is part of what a connection needs; a longer one is reserved while its request waits.
const FREE_KEY: usize = 512;

/// The longest single sleep; a longer wait takes several.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// The same where the state is elsewhere: what other servers give back is noticed no later.
const LONGEST_SLEEP_ELSEWHERE: Duration = Duration::from_secs(1);

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) key: Arc<[u8]>,
    pub(crate) rule: PreparedPolicy,
    pub(crate) cost: u32,
    pub(crate) timeout: Duration,
}

/// Why a request that was to wait got no answer. Its text is a whole error reply.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused(QueueFull),
    /// The server buffers as much for its clients as it may.
    NoMemory,
    Store(StoreError),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(formatter, "ERR {refusal}"),
            Self::NoMemory => formatter.write_str(NO_MEMORY),
            Self::Store(error) => formatter.write_str(&error_reply(error)),
        }
    }
}

impl From<QueueFull> for Failure {
    fn from(refusal: QueueFull) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Lines {
    /// `key` was asked: wakes who may have become able to pass.
    pub(crate) fn asked(&self, key: &[u8], policy: &Policy, operation: Operation) {
        match operation {
            Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => self.changed(key),
            Operation::Take(_) | Operation::Reserve { .. } => self.taken(key, policy),
            Operation::Peek(_) => {}
        }
    }
}

/// The answer to a request when its time has come. `stopping` turning true denies it at once.
///
/// To drop this is to leave: nothing stays taken.
pub(crate) async fn wait(
    decider: &Decider,
    waiting: Waiting,
    stopping: watch::Receiver<bool>,
) -> Result<Answer, Failure> {
    let source = Cell::new(Source::Store);
    let decision = decide(decider, waiting, &source, stopping).await?;
    Ok(Answer { decision, source: source.get() })
}

/// The decision. `source` becomes who made the last one that it is of.
async fn decide(
    decider: &Decider,
    waiting: Waiting,
    source: &Cell<Source>,
    stopping: watch::Receiver<bool>,
) -> Result<Decision, Failure> {
    let now = decider.now();
    let Waiting { key, rule, cost, timeout } = waiting;
    let mut reservation = decider.buffers.reserve_nothing();
    if key.len() > FREE_KEY && !reservation.resize(key.len()) {
        return Err(Failure::NoMemory);
    }
    let policy = rule.policy();
    let ask = Ask { decider, key: &key, rule: &rule, cost, deadline: now + timeout, source };
    if cost == 0 {
        return Ok(ask.apply(now, Operation::Take(0)).await?);
    }
    if departs(policy) {
        let _place = decider.queues.hold(&key)?;
        let reserve = Operation::Reserve { cost, max_wait: timeout };
        let decision = ask.apply(now, reserve).await?;
        decider.queues.taken(&key, policy);
        if !decision.allowed() {
            return Ok(decision);
        }
        return Ok(ask.departure(ask.later(now), decision, stopping).await?);
    }
    let request = QueuedRequest { policy: policy.clone(), cost, deadline: ask.deadline };
    let mut place = decider.queues.join(&key, request)?;
    match ask.turn(now, &place, stopping.clone()).await? {
        Asked::Passed(at, decision) => {
            place.step_out();
            Ok(ask.departure(ask.later(at), decision, stopping).await?)
        }
        Asked::Denied(decision) => Ok(decision),
    }
}

/// What was asked, and until when the answer is wanted.
#[derive(Clone, Copy)]
struct Ask<'a> {
    decider: &'a Decider,
    key: &'a [u8],
    rule: &'a PreparedPolicy,
    cost: u32,
    deadline: Timestamp,
    /// Who made the last decision.
    source: &'a Cell<Source>,
}

enum Asked {
    /// Taken, at that time.
    Passed(Timestamp, Decision),
    Denied(Decision),
}

impl Ask<'_> {
    /// Stands in line until the request passes or its deadline is sure to be missed.
    ///
    /// It arrived at `now`, and is asked at that time: so one that may not wait at all may pass.
    async fn turn(
        self,
        mut now: Timestamp,
        place: &Place<'_>,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<Asked, StoreError> {
        let mut arrived = false;
        loop {
            let next = if place.is_head() {
                match self.head(now).await? {
                    Ok(later) => later,
                    Err(asked) => return Ok(asked),
                }
            } else {
                let late = now >= self.deadline;
                if late || !arrived {
                    let turn = self.projected(now, place).await?;
                    if late || turn.is_none_or(|at| at > self.deadline) {
                        return self.deny(now, turn).await;
                    }
                }
                self.deadline
            };
            arrived = true;
            tokio::select! {
                () = self.nap(now, next) => {}
                () = place.turn() => {}
                () = stopped(&mut stopping) => {
                    now = self.decider.now();
                    let turn = self.projected(now, place).await?;
                    return self.deny(now, turn).await;
                }
            }
            now = self.decider.now();
        }
    }

    /// Asks as the head of the line: the answer, or when to ask again.
    async fn head(self, now: Timestamp) -> Result<Result<Timestamp, Asked>, StoreError> {
        // Where a denial leaves a mark, or a pass may come too late to be of use, look first.
        let careful =
            self.rule.policy().limits().iter().any(|limit| limit.count_all() || limit.is_queue());
        let first = if careful { Operation::Peek(self.cost) } else { Operation::Take(self.cost) };
        let decision = self.apply(now, first).await?;
        // Waits are counted from when the answer is there.
        let now = self.later(now);
        Ok(match decision.outcome {
            Outcome::Allow { delay } if now + delay > self.deadline => {
                let late = delay.saturating_sub(until(now, self.deadline));
                Err(Asked::Denied(denied(decision, late)))
            }
            Outcome::Allow { .. } if careful => Err(self.take(now).await?),
            Outcome::Allow { .. } => Err(Asked::Passed(now, decision)),
            Outcome::Deny { retry: Retry::After(wait) } if now + wait <= self.deadline => {
                Ok(now + wait)
            }
            Outcome::Deny { .. } if careful => Err(self.take(now).await?),
            Outcome::Deny { .. } => Err(Asked::Denied(decision)),
        })
    }

    async fn take(self, now: Timestamp) -> Result<Asked, StoreError> {
        let decision = self.apply(now, Operation::Take(self.cost)).await?;
        Ok(if decision.allowed() { Asked::Passed(now, decision) } else { Asked::Denied(decision) })
    }

    /// The denial of one that stands in line: what a take says, or if that would pass out of turn,
    /// when the `turn` would come.
    async fn deny(self, now: Timestamp, turn: Option<Timestamp>) -> Result<Asked, StoreError> {
        let peek = self.apply(now, Operation::Peek(self.cost)).await?;
        if !peek.allowed() {
            return self.take(now).await;
        }
        let turn = turn.unwrap_or(self.deadline);
        Ok(Asked::Denied(denied(peek, until(now, turn).max(Duration::from_micros(1)))))
    }

    /// When the request would pass if those ahead went first and nothing else came, or a time before that;
    /// `None`: never.
    async fn projected(
        self,
        now: Timestamp,
        place: &Place<'_>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let copy = |entry: &Entry, there| {
            let small = entry.allocations().sum::<usize>() <= MAX_PROJECTED_ENTRY;
            (small.then(|| entry.clone()), there)
        };
        let (entry, there) = match self.decider.read(self.key, now, copy).await? {
            Some((Some(entry), there)) => (Some(entry), there),
            None => (None, now),
            // It is too large to be copied for each request that comes.
            Some((None, _)) => {
                let peek = self.apply(now, Operation::Peek(self.cost)).await?;
                return Ok(match peek.outcome {
                    Outcome::Allow { .. } => Some(now),
                    Outcome::Deny { retry: Retry::After(wait) } => Some(now + wait),
                    Outcome::Deny { retry: Retry::Never } => None,
                });
            }
        };
        let Self { cost, deadline, .. } = self;
        let request = QueuedRequest { policy: self.rule.policy().clone(), cost, deadline };
        let at =
            place.projected(&request, ObservedEntry { entry, store_time: there, local_time: now });
        Ok(at.map(|at| now + until(there, at)))
    }

    /// Holds what was taken at `now` until its departure, and answers how the key stands then.
    async fn departure(
        self,
        mut now: Timestamp,
        decision: Decision,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<Decision, StoreError> {
        if decision.delay().is_zero() {
            return Ok(decision);
        }
        let departure = now + decision.delay();
        // What was assigned without the store is nothing that the store could take back.
        let is_charged = self.source.get() != Source::Fallback;
        let mut assigned = Assigned { ask: self, given_back: !is_charged };
        while now < departure {
            tokio::select! {
                () = self.nap(now, departure) => {}
                () = stopped(&mut stopping) => {
                    now = self.decider.now();
                    assigned.given_back = true;
                    if !is_charged {
                        return Ok(denied(decision, until(now, departure)));
                    }
                    let decision = self.apply(now, Operation::Refund(self.cost)).await?;
                    self.decider.queues.changed(self.key);
                    return Ok(denied(decision, until(now, departure)));
                }
            }
            now = self.decider.now();
        }
        assigned.given_back = true; // nothing is to be given back any more
        self.apply(now, Operation::Peek(0)).await
    }

    async fn apply(self, now: Timestamp, operation: Operation) -> Result<Decision, StoreError> {
        let answer = self.decider.decide(self.key, self.rule, operation, now).await?;
        self.source.set(answer.source);
        Ok(answer.decision)
    }

    /// The time when an answer is there to what was asked at `asked`: where the state is here, no time
    /// has passed.
    fn later(self, asked: Timestamp) -> Timestamp {
        if self.decider.is_local() { asked } else { self.decider.now() }
    }

    /// Sleeps until `then`, or for as long as may be slept.
    async fn nap(self, now: Timestamp, then: Timestamp) {
        let here = self.decider.is_local();
        let longest = if here { LONGEST_SLEEP } else { LONGEST_SLEEP_ELSEWHERE };
        sleep(until(now, then).min(longest)).await;
    }
}

/// Units that were taken for a departure to come. Dropped before it, they are given back.
struct Assigned<'a> {
    ask: Ask<'a>,
    given_back: bool,
}

impl Drop for Assigned<'_> {
    fn drop(&mut self) {
        let Ask { decider, key, rule, cost, .. } = self.ask;
        if !self.given_back {
            decider.refund_unused(key, rule, cost, decider.now());
            decider.queues.changed(key);
        }
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
