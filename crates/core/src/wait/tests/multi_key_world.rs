//! Several keys with the requests that wait for them, in virtual time: the store is an entry for each key.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{Event, Step, Ticket, WaitQueues, Waiter},
    world::at,
};
use crate::{
    Answer, Decision, Entry, EntryOperation, Operation, Outcome, Policy, Retry, Timestamp, apply,
    apply_all,
};

/// Keys, each with a policy and the units that a request takes or holds.
pub(super) type Takes<'a> = &'a [(usize, &'a str, u32)];

pub(super) const TTL: Option<Duration> = Some(Duration::from_secs(24 * 3600));

/// Three keys, and the requests that wait for them.
#[derive(Default)]
pub(super) struct MultiKeyWorld {
    pub(super) now: Timestamp,
    pub(super) entries: [Option<Entry>; 3],
    /// The data of a waiter is the number of its request.
    pub(super) queues: WaitQueues<usize, usize>,
    pub(super) requests: BTreeMap<usize, Request>,
    /// The answers, in order.
    pub(super) answers: Vec<(usize, Timestamp, Answer)>,
    /// The operations of all requests, in order: whether it was a peek, and was allowed.
    pub(super) applied: Vec<(usize, bool, bool)>,
    last: usize,
}

/// A request with its driver.
pub(super) struct Request {
    waiter: Waiter<usize>,
    takes: Vec<(usize, Policy, u32)>,
    pub(super) step: Step,
    is_woken: bool,
}

impl Request {
    /// The key in whose queue it is.
    pub(super) fn queue(&self) -> Option<usize> {
        self.waiter.position().map(|index| *self.waiter.key(index))
    }

    /// Whether its driver sleeps.
    pub(super) fn sleeps(&self, now: Timestamp) -> bool {
        matches!(self.step, Step::SleepUntil(then) if !self.is_woken && now < then)
    }
}

fn settle(id: &str) -> Operation<'_> {
    Operation::Settle { id: id.as_bytes(), used: None }
}

impl MultiKeyWorld {
    /// A request for all of the keys arrives, and runs until it sleeps. With an id it holds.
    pub(super) fn wait(&mut self, takes: Takes<'_>, id: Option<&str>, timeout: u64) -> usize {
        let number = self.arrive(takes, id, timeout);
        self.run();
        number
    }

    /// A request arrives; its driver has the first step to do.
    pub(super) fn arrive(&mut self, takes: Takes<'_>, id: Option<&str>, timeout: u64) -> usize {
        let takes = takes.iter().map(|(key, policy, cost)| (*key, policy.parse().unwrap(), *cost));
        let takes: Vec<(usize, Policy, u32)> = takes.collect();
        let timeout = Duration::from_micros(timeout);
        let operation = match id {
            Some(id) => Operation::Hold { id: id.as_bytes(), cost: 0, ttl: TTL },
            None => Operation::Take(0),
        };
        let operations = takes
            .iter()
            .map(|(key, policy, cost)| (*key, policy.clone(), operation.with_cost(*cost)));
        let waiter = Waiter::queued_all(operations, timeout);
        self.last += 1;
        let step = Step::SleepUntil(self.now);
        self.requests.insert(self.last, Request { waiter, takes, step, is_woken: false });
        self.poll(self.last, Event::Start);
        self.last
    }

    /// An operation on one key, of a client that does not wait.
    pub(super) fn apply(&mut self, key: usize, policy: &str, operation: Operation) -> Decision {
        let decision = self.apply_only(key, policy, operation);
        self.run();
        decision
    }

    /// The same, before any driver notices.
    pub(super) fn apply_only(&mut self, key: usize, policy: &str, it: Operation) -> Decision {
        let policy = policy.parse().unwrap();
        let decision = apply(&policy, &mut self.entries[key], self.now, it).unwrap();
        let head = self.queues.applied(&key, &policy, it, decision.allowed());
        self.wake(head);
        decision
    }

    /// A client that does not wait opens a hold.
    pub(super) fn hold(&mut self, key: usize, policy: &str, id: &str) {
        let hold = Operation::Hold { id: id.as_bytes(), cost: 1, ttl: TTL };
        assert!(self.apply(key, policy, hold).allowed(), "{id}");
    }

    /// The hold of a key ends. Whether it was open.
    pub(super) fn settle(&mut self, key: usize, policy: &str, id: &str) -> bool {
        self.apply(key, policy, settle(id)).allowed()
    }

    /// The same, before any driver notices.
    pub(super) fn settle_only(&mut self, key: usize, policy: &str, id: &str) -> bool {
        self.apply_only(key, policy, settle(id)).allowed()
    }

    /// The client of a request disconnects.
    pub(super) fn kill(&mut self, number: usize) {
        let mut request = self.requests.remove(&number).unwrap();
        self.leave(&mut request.waiter);
        self.run();
    }

    /// No request waits any longer.
    pub(super) fn stop(&mut self) {
        for number in self.requests.keys().copied().collect::<Vec<_>>() {
            self.poll(number, Event::Stopped);
            self.run();
        }
    }

    fn leave(&mut self, waiter: &mut Waiter<usize>) {
        let left = self.queues.remove(waiter);
        assert_eq!(left.refund, None, "nothing is charged while it waits");
        left.wake.into_iter().for_each(|head| self.wake(Some(head)));
    }

    fn wake(&mut self, head: Option<Ticket>) {
        let number = head.and_then(|head| self.queues.data(head).copied());
        if let Some(request) = number.and_then(|number| self.requests.get_mut(&number)) {
            request.is_woken = true;
        }
    }

    fn poll(&mut self, number: usize, event: Event) {
        let request = self.requests.get_mut(&number).unwrap();
        let polled = self.queues.poll(&mut request.waiter, self.now, event, || number);
        request.step = polled.step;
        polled.wake.into_iter().for_each(|head| self.wake(Some(head)));
        if let Step::Done(answer) = &self.requests[&number].step {
            self.answers.push((number, self.now, answer.clone()));
            let mut request = self.requests.remove(&number).unwrap();
            self.leave(&mut request.waiter);
        }
    }

    /// Carries out the step of a request.
    pub(super) fn step(&mut self, number: usize) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let event = match &request.step {
            Step::Apply => self.attempt(number),
            Step::CheckOpen => {
                let id = request.waiter.attempted(0).id().unwrap();
                let is_open = |key: usize| {
                    self.entries[key].as_ref().is_some_and(|it| it.has_open_hold(id, self.now))
                };
                Event::IsOpen(request.takes.iter().all(|(key, ..)| is_open(*key)))
            }
            Step::SleepUntil(..) => {
                request.is_woken = false;
                Event::Woken
            }
            step => unreachable!("{step:?} of several keys"),
        };
        self.poll(number, event);
    }

    fn attempt(&mut self, number: usize) -> Event {
        let Request { takes, waiter, .. } = &self.requests[&number];
        let mut entries: Vec<_> = takes.iter().map(|(key, ..)| self.entries[*key].take()).collect();
        let parts = takes.iter().zip(&mut entries);
        let mut parts: Vec<_> = parts
            .enumerate()
            .map(|(index, ((_, policy, _), entry))| EntryOperation {
                policy,
                entry,
                operation: waiter.operation(index),
            })
            .collect();
        let is_peek = matches!(parts[0].operation, Operation::Peek(_));
        let decided = apply_all(&mut parts, self.now).unwrap();
        for ((key, ..), entry) in takes.iter().zip(entries) {
            self.entries[*key] = entry;
        }
        self.applied.push((number, is_peek, decided.allowed()));
        Event::Answered(decided)
    }

    /// Runs all drivers until they sleep.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            let now = self.now;
            let awake = self.requests.iter().find(|(_, request)| !request.sleeps(now));
            let Some((&number, _)) = awake else { return };
            self.step(number);
        }
        panic!("the drivers never sleep");
    }

    /// Lets time pass up to `micros`.
    pub(super) fn run_until(&mut self, micros: u64) {
        self.run();
        let next = |world: &Self| {
            let times = world.requests.values().filter_map(|request| match request.step {
                Step::SleepUntil(then) => Some(then),
                _ => None,
            });
            times.min().filter(|then| *then <= at(micros))
        };
        while let Some(then) = next(self) {
            self.now = self.now.max(then);
            self.run();
        }
        self.now = at(micros);
    }

    /// When a request was allowed; `Err` with its retry time if it was denied.
    pub(super) fn answer(&self, number: usize) -> Option<Result<u64, Retry>> {
        let (_, when, decided) = self.answers.iter().find(|(it, ..)| *it == number)?;
        Some(match decided.decision.outcome {
            Outcome::Allow { .. } => Ok(when.as_micros()),
            Outcome::Deny { retry } => Err(retry),
        })
    }

    /// The key in whose queue a request is.
    pub(super) fn queue(&self, number: usize) -> Option<usize> {
        self.requests.get(&number)?.queue()
    }

    /// Units of a key in use, apart from those that are held.
    pub(super) fn used(&self, key: usize) -> u64 {
        let limits = self.entries[key].iter().flat_map(|entry| entry.usage(self.now));
        limits.map(|(_, usage)| usage.used).sum()
    }
}
