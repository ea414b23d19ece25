//! Several keys with the requests that wait for them, in virtual time: the store is an entry for each key.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{Event, MultiKeyEvent, MultiKeyStep, MultiKeyWaiter, Ticket, WaitQueues},
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
    waiter: MultiKeyWaiter,
    takes: Vec<(usize, Policy, u32)>,
    pub(super) step: MultiKeyStep,
    /// The key in whose queue it is.
    pub(super) queue: Option<(usize, Ticket)>,
    is_woken: bool,
}

impl Request {
    /// Whether its driver sleeps.
    pub(super) fn sleeps(&self, now: Timestamp) -> bool {
        matches!(self.step, MultiKeyStep::SleepUntil(_, then) if !self.is_woken && now < then)
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
        let policies = takes.iter().map(|(_, policy, cost)| (policy.clone(), *cost));
        let timeout = Duration::from_micros(timeout);
        let operation = match id {
            Some(id) => Operation::Hold { id: id.as_bytes(), cost: 0, ttl: TTL },
            None => Operation::Take(0),
        };
        let mut waiter = MultiKeyWaiter::new(policies, operation, timeout);
        let step = waiter.poll(self.now, MultiKeyEvent::Start);
        self.last += 1;
        let request = Request { waiter, takes, step, queue: None, is_woken: false };
        self.requests.insert(self.last, request);
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
        let request = self.requests.remove(&number).unwrap();
        self.leave(request.queue);
        self.run();
    }

    /// No request waits any longer.
    pub(super) fn stop(&mut self) {
        for number in self.requests.keys().copied().collect::<Vec<_>>() {
            self.poll(number, MultiKeyEvent::Stopped);
            self.run();
        }
    }

    fn leave(&mut self, queue: Option<(usize, Ticket)>) {
        let left = queue.and_then(|(_, ticket)| self.queues.remove(ticket));
        if let Some((_, refund, head)) = left {
            assert_eq!(refund, None, "nothing is charged while it waits");
            self.wake(head);
        }
    }

    fn wake(&mut self, head: Option<Ticket>) {
        let number = head.and_then(|head| self.queues.data(head).copied());
        if let Some(request) = number.and_then(|number| self.requests.get_mut(&number)) {
            request.is_woken = true;
        }
    }

    fn poll(&mut self, number: usize, event: MultiKeyEvent) {
        let request = self.requests.get_mut(&number).unwrap();
        request.step = request.waiter.poll(self.now, event);
        if let MultiKeyStep::Done(answer) = &request.step {
            self.answers.push((number, self.now, answer.clone()));
            let Request { takes, queue, .. } = self.requests.remove(&number).unwrap();
            self.leave(queue);
            for (key, ..) in takes {
                let head = self.queues.changed(&key);
                self.wake(head);
            }
        }
    }

    /// Carries out the step of a request.
    pub(super) fn step(&mut self, number: usize) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let event = match &request.step {
            MultiKeyStep::Apply => self.attempt(number),
            MultiKeyStep::CheckOpen(id) => {
                let is_open = |key: usize| {
                    self.entries[key].as_ref().is_some_and(|it| it.has_open_hold(id, self.now))
                };
                MultiKeyEvent::IsOpen(request.takes.iter().all(|(key, ..)| is_open(*key)))
            }
            MultiKeyStep::Enter { key, request: entered } => {
                let (key, entered) = (request.takes[*key].0, entered.clone());
                let left = request.queue.take();
                self.leave(left);
                let ticket = self.queues.enqueue(key, entered, number).unwrap();
                self.requests.get_mut(&number).unwrap().queue = Some((key, ticket));
                MultiKeyEvent::Entered(ticket)
            }
            MultiKeyStep::Poll(ticket, event) => {
                let event = match event {
                    Event::Start => Event::Start,
                    Event::Woken => Event::Woken,
                    Event::Answered(answer) => Event::Answered(answer.clone()),
                    event => panic!("{event:?}"),
                };
                let polled = self.queues.poll(*ticket, self.now, event);
                self.wake(polled.wake);
                MultiKeyEvent::Queued(polled.step)
            }
            MultiKeyStep::SleepUntil(..) => {
                request.is_woken = false;
                MultiKeyEvent::Woken
            }
            MultiKeyStep::Done(_) => unreachable!("it is removed"),
        };
        self.poll(number, event);
    }

    fn attempt(&mut self, number: usize) -> MultiKeyEvent {
        let Request { takes, waiter, .. } = &self.requests[&number];
        let operation = waiter.operation();
        let mut entries: Vec<_> = takes.iter().map(|(key, ..)| self.entries[*key].take()).collect();
        let parts = takes.iter().zip(&mut entries);
        let mut parts: Vec<_> = parts
            .map(|((_, policy, cost), entry)| EntryOperation {
                policy,
                entry,
                operation: operation.with_cost(*cost),
            })
            .collect();
        let decided = apply_all(&mut parts, self.now).unwrap();
        for ((key, ..), entry) in takes.iter().zip(entries) {
            self.entries[*key] = entry;
        }
        let is_peek = matches!(operation, Operation::Peek(_));
        self.applied.push((number, is_peek, decided.allowed()));
        MultiKeyEvent::Answered(decided)
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
                MultiKeyStep::SleepUntil(_, then) => Some(then),
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
        self.requests.get(&number)?.queue.map(|(key, _)| key)
    }

    /// Units of a key in use, apart from those that are held.
    pub(super) fn used(&self, key: usize) -> u64 {
        let limits = self.entries[key].iter().flat_map(|entry| entry.usage(self.now));
        limits.map(|(_, usage)| usage.used).sum()
    }
}
