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

use std::time::Duration;

use sluicegate_commands::line::{Request, departs, is_queue, project};
use sluicegate_core::{Decision, Operation, Outcome, Retry, Timestamp};
use sluicegate_memory::Rule;
use tokio::{sync::watch, time::sleep};

pub(crate) use sluicegate_commands::line::Refusal;

pub(crate) use self::line::Lines;
use self::line::Place;
use crate::shared::{Shared, stopped};

/// The longest single sleep; a longer wait takes several.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) key: Box<[u8]>,
    pub(crate) rule: Rule,
    pub(crate) cost: u32,
    pub(crate) timeout: Duration,
}

/// The answer to a request when its time has come. `stopping` turning true denies it at once.
///
/// To drop this is to leave: nothing stays taken.
pub(crate) async fn wait(
    shared: &Shared,
    waiting: Waiting,
    stopping: watch::Receiver<bool>,
) -> Result<Decision, Refusal> {
    let now = shared.now();
    let Waiting { key, rule, cost, timeout } = waiting;
    let policy = rule.policy();
    let ask = Ask { shared, key: &key, rule: &rule, cost, deadline: now + timeout };
    if cost == 0 {
        return Ok(ask.apply(now, Operation::Take(0)));
    }
    if departs(policy) {
        let _place = shared.lines.hold(&key)?;
        let reserve = Operation::Reserve { cost, max_wait: timeout };
        let decision = ask.apply(now, reserve);
        shared.lines.taken(&key, policy);
        if !decision.allowed() {
            return Ok(decision);
        }
        return Ok(ask.departure(now, decision, stopping).await);
    }
    let request = Request { policy: policy.clone(), cost, deadline: ask.deadline };
    let mut place = shared.lines.join(&key, request)?;
    let answer = ask.turn(now, &place, stopping.clone()).await;
    place.step_out();
    match answer {
        Asked::Passed(at, decision) => Ok(ask.departure(at, decision, stopping).await),
        Asked::Denied(decision) => Ok(decision),
    }
}

/// What was asked, and until when the answer is wanted.
#[derive(Clone, Copy)]
struct Ask<'a> {
    shared: &'a Shared,
    key: &'a [u8],
    rule: &'a Rule,
    cost: u32,
    deadline: Timestamp,
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
    ) -> Asked {
        let mut arrived = false;
        loop {
            let next = if place.is_head() {
                match self.head(now) {
                    Ok(later) => later,
                    Err(asked) => return asked,
                }
            } else {
                let missed = || self.projected(now, place).is_none_or(|at| at > self.deadline);
                if now >= self.deadline || (!arrived && missed()) {
                    return self.deny(now, place);
                }
                self.deadline
            };
            arrived = true;
            tokio::select! {
                () = nap(now, next) => {}
                () = place.turn() => {}
                () = stopped(&mut stopping) => return self.deny(self.shared.now(), place),
            }
            now = self.shared.now();
        }
    }

    /// Asks as the head of the line: the answer, or when to ask again.
    fn head(self, now: Timestamp) -> Result<Timestamp, Asked> {
        // Where a denial leaves a mark, or a pass may come too late to be of use, look first.
        let careful =
            self.rule.policy().limits().iter().any(|limit| limit.count_all() || is_queue(limit));
        let take = || {
            let decision = self.apply(now, Operation::Take(self.cost));
            if decision.allowed() { Asked::Passed(now, decision) } else { Asked::Denied(decision) }
        };
        let first = if careful { Operation::Peek(self.cost) } else { Operation::Take(self.cost) };
        let decision = self.apply(now, first);
        match decision.outcome {
            Outcome::Allow { delay } if now + delay > self.deadline => {
                let late = delay.saturating_sub(until(now, self.deadline));
                Err(Asked::Denied(denied(decision, late)))
            }
            Outcome::Allow { .. } if careful => Err(take()),
            Outcome::Allow { .. } => Err(Asked::Passed(now, decision)),
            Outcome::Deny { retry: Retry::After(wait) } if now + wait <= self.deadline => {
                Ok(now + wait)
            }
            Outcome::Deny { .. } if careful => Err(take()),
            Outcome::Deny { .. } => Err(Asked::Denied(decision)),
        }
    }

    /// The denial of one that stands in line: what a take says, or if that would pass out of turn,
    /// when the turn would come.
    fn deny(self, now: Timestamp, place: &Place<'_>) -> Asked {
        let peek = self.apply(now, Operation::Peek(self.cost));
        if !peek.allowed() {
            let decision = self.apply(now, Operation::Take(self.cost));
            return if decision.allowed() {
                Asked::Passed(now, decision)
            } else {
                Asked::Denied(decision)
            };
        }
        let turn = self.projected(now, place).unwrap_or(self.deadline);
        Asked::Denied(denied(peek, until(now, turn).max(Duration::from_micros(1))))
    }

    /// When the request would pass if those ahead went first and nothing else came.
    fn projected(self, now: Timestamp, place: &Place<'_>) -> Option<Timestamp> {
        let entry = self.shared.store.with_entry(self.key, Clone::clone);
        project(entry, now, &place.up_to_here())
    }

    /// Holds what was taken at `now` until its departure, and answers how the key stands then.
    async fn departure(
        self,
        mut now: Timestamp,
        decision: Decision,
        mut stopping: watch::Receiver<bool>,
    ) -> Decision {
        if decision.delay().is_zero() {
            return decision;
        }
        let departure = now + decision.delay();
        let mut assigned = Assigned { ask: self, given_back: false };
        while now < departure {
            tokio::select! {
                () = nap(now, departure) => {}
                () = stopped(&mut stopping) => {
                    now = self.shared.now();
                    let decision = assigned.give_back(now);
                    return denied(decision, until(now, departure));
                }
            }
            now = self.shared.now();
        }
        assigned.given_back = true; // nothing is to be given back any more
        self.apply(now, Operation::Peek(0))
    }

    fn apply(self, now: Timestamp, operation: Operation) -> Decision {
        let request = sluicegate_memory::Request { key: self.key, rule: self.rule, operation };
        let applied = self.shared.store.ask(request, now);
        applied.expect("reserve is only asked of policies of the gcra machine")
    }
}

/// Units that were taken for a departure to come. Dropped before it, they are given back.
struct Assigned<'a> {
    ask: Ask<'a>,
    given_back: bool,
}

impl Assigned<'_> {
    fn give_back(&mut self, now: Timestamp) -> Decision {
        self.given_back = true;
        let decision = self.ask.apply(now, Operation::Refund(self.ask.cost));
        self.ask.shared.lines.changed(self.ask.key);
        decision
    }
}

impl Drop for Assigned<'_> {
    fn drop(&mut self) {
        if !self.given_back {
            let _ = self.give_back(self.ask.shared.now());
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

/// Sleeps until `then`, but for an hour at most.
async fn nap(now: Timestamp, then: Timestamp) {
    sleep(until(now, then).min(LONGEST_SLEEP)).await;
}
