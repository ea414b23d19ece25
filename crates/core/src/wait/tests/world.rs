//! One key with its waiters, in virtual time: the store is one entry, and drivers sleep by setting a time.

use std::{collections::BTreeMap, time::Duration};

use super::super::{
    ObservedEntry, Ticket, WaitQueues,
    key_waiter::{KeyEvent, KeyStep},
    queues::KeyPolled,
    request::KeyRequest,
};
use crate::{Decision, Entry, Operation, Outcome, Policy, Retry, Timestamp, apply};

pub(super) const SECOND: u64 = 1_000_000;
pub(super) const HOUR: u64 = 3600 * SECOND;

/// One key with its waiters.
#[derive(Default)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) entry: Option<Entry>,
    pub(super) queues: WaitQueues<u8, ()>,
    pub(super) drivers: BTreeMap<Ticket, Driver>,
    /// The answers, in order.
    pub(super) answers: Vec<(Ticket, Timestamp, Decision)>,
    /// The operations of all waiters, in order.
    pub(super) applied: Vec<(Ticket, Operation<'static>, Decision)>,
    /// Cost and deadline of each request.
    pub(super) costs: BTreeMap<Ticket, u64>,
    pub(super) deadlines: BTreeMap<Ticket, Timestamp>,
    /// Whether states are too large to be observed.
    pub(super) is_large: bool,
}

/// The driver of one waiter.
pub(super) struct Driver {
    pub(super) policy: Policy,
    pub(super) step: KeyStep,
    /// It was woken while it did not sleep.
    pub(super) is_woken: bool,
}

pub(super) fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

pub(super) fn request(policy: &str, cost: u32, deadline: Timestamp) -> KeyRequest {
    KeyRequest::take(policy.parse().unwrap(), cost, deadline)
}

impl World {
    /// A request arrives; its driver runs until it sleeps.
    pub(super) fn wait(&mut self, policy: &str, cost: u32, timeout: u64) -> Ticket {
        let ticket = self.arrive(policy, cost, timeout);
        self.run_until_idle();
        ticket
    }

    /// A request arrives; its driver has the first step to do.
    pub(super) fn arrive(&mut self, policy: &str, cost: u32, timeout: u64) -> Ticket {
        let request = request(policy, cost, self.now + Duration::from_micros(timeout));
        let (policy, deadline) = (request.policy.clone(), request.deadline);
        let ticket = self.queues.enqueue(0, request, ()).unwrap();
        let step = KeyStep::SleepUntil(self.now);
        self.costs.insert(ticket, cost.into());
        self.deadlines.insert(ticket, deadline);
        self.drivers.insert(ticket, Driver { policy, step, is_woken: false });
        self.poll(ticket, KeyEvent::Start);
        ticket
    }

    /// An operation of a client that does not wait.
    pub(super) fn apply(&mut self, policy: &str, operation: Operation) -> Decision {
        let decision = self.apply_only(policy, operation);
        self.run_until_idle();
        decision
    }

    /// The same, before any driver notices.
    pub(super) fn apply_only(&mut self, policy: &str, operation: Operation) -> Decision {
        let policy = policy.parse().unwrap();
        let decision = apply(&policy, &mut self.entry, self.now, operation).unwrap();
        let head = self.queues.applied(&0, &policy, operation, decision.allowed());
        self.wake(head);
        decision
    }

    pub(super) fn poll(&mut self, ticket: Ticket, event: KeyEvent) {
        let KeyPolled { step, wake } = self.queues.poll_key(ticket, self.now, event);
        let answered = match &step {
            KeyStep::Done(answer) => Some(answer.decision),
            _ => None,
        };
        self.drivers.get_mut(&ticket).unwrap().step = step;
        self.wake(wake);
        if let Some(decision) = answered {
            self.answers.push((ticket, self.now, decision));
            assert_eq!(self.leave(ticket), None, "an answered request gives nothing back");
        }
    }

    pub(super) fn wake(&mut self, head: Option<Ticket>) {
        if let Some(head) = head {
            self.drivers.get_mut(&head).unwrap().is_woken = true;
        }
    }

    /// Removes a request, because it was answered or because its client has left.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Operation<'static>> {
        let policy = self.drivers.remove(&ticket)?.policy;
        let ((), refund, next) = self.queues.remove_key(ticket).unwrap();
        self.wake(next);
        if let Some(refund) = refund {
            let decision = apply(&policy, &mut self.entry, self.now, refund).unwrap();
            self.applied.push((ticket, refund, decision));
            let head = self.queues.applied(&0, &policy, refund, true);
            self.wake(head);
        }
        refund
    }

    /// A client disconnects.
    pub(super) fn kill(&mut self, ticket: Ticket) -> Option<Operation<'static>> {
        let refund = self.leave(ticket);
        self.run_until_idle();
        refund
    }

    /// The server stops: no request waits any longer.
    pub(super) fn stop(&mut self) {
        for ticket in self.drivers.keys().copied().collect::<Vec<_>>() {
            self.poll(ticket, KeyEvent::Stopped);
            self.run_until_idle();
        }
        assert!(self.drivers.is_empty());
    }

    /// Does the next step of one driver. Whether it had one that is not to sleep longer.
    pub(super) fn step(&mut self, ticket: Ticket) -> bool {
        let Some(driver) = self.drivers.get_mut(&ticket) else { return false };
        let event = match driver.step {
            KeyStep::Apply(operation) => {
                let decision = apply(&driver.policy, &mut self.entry, self.now, operation);
                let decision = decision.unwrap();
                self.applied.push((ticket, operation, decision));
                KeyEvent::Answered(decision.into())
            }
            KeyStep::Observe if self.is_large => KeyEvent::Observed(None),
            KeyStep::Observe => KeyEvent::Observed(Some(ObservedEntry {
                entry: self.entry.clone(),
                store_time: self.now,
                local_time: self.now,
            })),
            KeyStep::SleepUntil(then) if driver.is_woken || then <= self.now => {
                driver.is_woken = false;
                KeyEvent::Woken
            }
            KeyStep::SleepUntil(_) | KeyStep::Done(_) => return false,
        };
        self.poll(ticket, event);
        true
    }

    /// Runs all drivers until they sleep.
    pub(super) fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            let awake = self.drivers.keys().copied().find(|it| {
                let Driver { step, is_woken, .. } = &self.drivers[it];
                !matches!(step, KeyStep::SleepUntil(then) if !is_woken && *then > self.now)
            });
            let Some(ticket) = awake else { return };
            assert!(self.step(ticket));
        }
        panic!("the drivers never sleep");
    }

    /// When the next driver stops sleeping.
    pub(super) fn next_time(&self) -> Option<Timestamp> {
        let times = self.drivers.values().filter_map(|driver| match driver.step {
            KeyStep::SleepUntil(then) => Some(then),
            KeyStep::Apply(_) | KeyStep::Observe | KeyStep::Done(_) => None,
        });
        times.min()
    }

    /// Lets time pass up to `micros`.
    pub(super) fn run_until(&mut self, micros: u64) {
        while let Some(then) = self.next_time().filter(|then| *then <= at(micros)) {
            self.now = self.now.max(then);
            self.run_until_idle();
        }
        self.now = at(micros);
    }

    /// When a request was allowed; `Err` with its retry time if it was denied.
    pub(super) fn answer(&self, ticket: Ticket) -> Option<Result<u64, Retry>> {
        let (_, when, decision) = self.answers.iter().find(|(it, ..)| *it == ticket)?;
        Some(match decision.outcome {
            Outcome::Allow { .. } => Ok(when.as_micros()),
            Outcome::Deny { retry } => Err(retry),
        })
    }

    /// The head of the queue.
    pub(super) fn head(&self) -> Option<Ticket> {
        self.drivers.keys().copied().find(|ticket| self.queues.is_queued(*ticket))
    }

    pub(super) fn used(&self) -> u64 {
        let limits = self.entry.iter().flat_map(|entry| entry.usage(self.now));
        limits.map(|(_, usage)| usage.used).sum()
    }
}
