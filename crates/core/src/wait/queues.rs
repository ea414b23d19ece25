//! The waiters of all keys, in one queue per key.
//!
//! A change that may let the head of a queue pass earlier (a refund, a reset, another policy) wakes it. The
//! cost of an arrival does not depend on the length of the queue: expected times are computed once, a few at
//! a time, and kept (`projection`).

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use super::{
    key_waiter::{KeyEvent, KeyStep, KeyWaiter},
    projection::{MAX_TOTAL_BYTES, Projection},
    request::{KeyRequest, MAX_WAITERS, MAX_WAITERS_OF_KEY, ObservedEntry, QueueFull, Ticket},
    waiter::{Event, Move, Step, Waiter},
};
use smallvec::SmallVec;

use crate::{Limit, Operation, Policy, Timestamp, reached};

/// Number of waiters up to which all are checked.
#[cfg(debug_assertions)]
const CHECKED: usize = 64;

/// The next step of a waiter, and the other waiters that the caller must wake.
#[must_use]
#[derive(Debug)]
pub struct Polled {
    /// The next step of the caller for the polled waiter.
    pub step: Step,
    /// Those to wake: each is to be polled with [`Event::Woken`].
    pub wake: Wake,
}

/// Waiters that may pass now.
pub type Wake = SmallVec<[Ticket; 2]>;

/// What a waiter leaves behind when it is removed.
#[must_use]
#[derive(Debug)]
pub struct Left<W> {
    /// The data of the caller; `None` if it was in no queue.
    pub data: Option<W>,
    /// The units that are charged for it, and are to be given back to its only key.
    pub refund: Option<Operation<'static>>,
    /// The waiters to wake.
    pub wake: Wake,
}

/// The next step of a waiter of one key, and the head of the queue if that is to be woken.
#[derive(Debug)]
pub(super) struct KeyPolled {
    pub(super) step: KeyStep,
    pub(super) wake: Option<Ticket>,
}

/// The waiters of all keys, each with data of the caller: how to reach its client.
#[derive(Debug)]
pub struct WaitQueues<K, W> {
    waiters: HashMap<Ticket, QueueEntry<K, W>>,
    queues: HashMap<K, WaitQueue>,
    last: Ticket,
    /// Bytes of the projections of all queues.
    projected_bytes: usize,
}

#[derive(Debug)]
struct QueueEntry<K, W> {
    key: K,
    waiter: KeyWaiter,
    data: W,
}

/// The waiters of one key.
#[derive(Debug, Default)]
struct WaitQueue {
    /// Those that have not passed, in the order of arrival.
    queued: VecDeque<Ticket>,
    /// Number of all waiters, including those that have passed and wait for their departure.
    count: usize,
    /// When the first waiters are expected to pass.
    projection: Option<Projection>,
}

impl<K, W> Default for WaitQueues<K, W> {
    fn default() -> Self {
        Self {
            waiters: HashMap::new(),
            queues: HashMap::new(),
            last: Ticket(0),
            projected_bytes: 0,
        }
    }
}

impl<K: Clone + Hash + Eq, W> WaitQueues<K, W> {
    /// The number of waiters.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The next step of a waiter, whose data is `data` if it enters its first queue. A waiter that is polled no more must be
    /// [removed](Self::remove).
    ///
    /// # Panics
    /// The event is no answer to the last step.
    pub fn poll(
        &mut self,
        waiter: &mut Waiter<K>,
        now: Timestamp,
        event: Event,
        data: impl FnOnce() -> W,
    ) -> Polled {
        let mut data = Some(data);
        let mut wake = Wake::new();
        let has_queue = matches!(event, Event::Start) && self.has_queue(waiter.key(0));
        let mut next = waiter.advance(now, event, has_queue);
        loop {
            next = match next {
                Move::Step(step) => {
                    #[cfg(debug_assertions)]
                    self.check();
                    return Polled { step, wake };
                }
                Move::Poll(event) => {
                    let ticket = waiter.ticket().expect("it is in a queue");
                    let polled = self.poll_key(ticket, now, event);
                    wake.extend(polled.wake);
                    waiter.follow_queue(now, polled.step)
                }
                Move::Enter(key) => {
                    let others = self.waiters.len() - usize::from(waiter.ticket().is_some());
                    if let Err(full) = self.room(others, waiter.key(key)) {
                        return Polled { step: Step::Reject(full), wake };
                    }
                    let left = waiter.leave().and_then(|ticket| self.remove_key(ticket));
                    let left = left.map(|(data, _, head)| {
                        wake.extend(head);
                        data
                    });
                    reached!(WaiterMovesToAnotherQueue if left.is_some());
                    let Some(data) = left.or_else(|| data.take().map(|data| data())) else {
                        unreachable!("a waiter that enters a second queue leaves the first one");
                    };
                    let request = waiter.request(key);
                    match self.enqueue(waiter.key(key).clone(), request, data) {
                        Ok(ticket) => waiter.entered(key, ticket),
                        Err(full) => return Polled { step: Step::Reject(full), wake },
                    }
                    Move::Poll(KeyEvent::Start)
                }
            };
        }
    }

    /// Removes a waiter, because it was answered or because its client has left.
    pub fn remove(&mut self, waiter: &mut Waiter<K>) -> Left<W> {
        let mut left = Left { data: None, refund: None, wake: Wake::new() };
        let removed = waiter.leave().and_then(|ticket| self.remove_key(ticket));
        if let Some((data, refund, head)) = removed {
            (left.data, left.refund) = (Some(data), refund);
            left.wake.extend(head);
        }
        // Once it is not the head of a queue any more, which would be woken in place of the next one.
        for (key, policy, operation, is_allowed) in waiter.take_effects() {
            left.wake.extend(match is_allowed {
                true => self.applied(key, policy, operation, true),
                // A remote store may have taken from some of several keys and given that back.
                false => self.changed(key),
            });
        }
        debug_assert!(waiter.ticket().is_none(), "a waiter that left is in a queue");
        #[cfg(debug_assertions)]
        self.check();
        left
    }

    /// Removes a waiter by its ticket, without the waiter. `None` if it was removed.
    pub fn remove_ticket(&mut self, ticket: Ticket) -> Option<Left<W>> {
        let (data, refund, head) = self.remove_key(ticket)?;
        #[cfg(debug_assertions)]
        self.check();
        Some(Left { data: Some(data), refund, wake: head.into_iter().collect() })
    }

    /// Checks the queues and the waiters against each other, if they are few.
    #[cfg(debug_assertions)]
    fn check(&self) {
        if self.waiters.len() > CHECKED {
            return;
        }
        let count: usize = self.queues.values().map(|queue| queue.count).sum();
        assert_eq!(count, self.waiters.len(), "each waiter is counted in one queue");
        let mut bytes = 0;
        for (key, queue) in &self.queues {
            let of_key = || self.waiters.iter().filter(|(_, entry)| entry.key == *key);
            assert_eq!(
                queue.count,
                of_key().count(),
                "the waiters of a queue are those of its key"
            );
            assert!(queue.count > 0, "a queue without a waiter stays");
            assert!(queue.queued.iter().is_sorted_by(|a, b| a < b), "not in the order of arrival");
            for (ticket, QueueEntry { waiter, .. }) in of_key() {
                assert!(*ticket <= self.last, "a ticket that was never given");
                let is_queued = queue.queued.binary_search(ticket).is_ok();
                assert!(!is_queued || !waiter.has_passed(), "a waiter is queued that has passed");
                assert!(is_queued || !waiter.is_to_pass(), "a waiter is lost from its queue");
            }
            let in_queue =
                |ticket: &Ticket| self.waiters.get(ticket).is_some_and(|entry| entry.key == *key);
            assert!(queue.queued.iter().all(in_queue), "a waiter that was removed is queued");
            if let Some(projection) = &queue.projection {
                projection.check();
                assert!(
                    projection.computed() <= queue.queued.len(),
                    "waiters that left are expected"
                );
                bytes += projection.bytes();
            }
        }
        assert_eq!(bytes, self.projected_bytes, "bytes of projections");
        assert!(bytes <= MAX_TOTAL_BYTES, "projections exceed their bound");
    }

    /// Whether one more waiter may enter the queue of `key`, beside `others` in all queues.
    fn room(&self, others: usize, key: &K) -> Result<(), QueueFull> {
        if others >= MAX_WAITERS {
            return Err(QueueFull::All);
        }
        if self.queues.get(key).is_some_and(|queue| queue.count >= MAX_WAITERS_OF_KEY) {
            return Err(QueueFull::Key);
        }
        Ok(())
    }

    /// Adds a waiter of one key, which is to be polled with [`KeyEvent::Start`].
    pub(super) fn enqueue(
        &mut self,
        key: K,
        request: KeyRequest,
        data: W,
    ) -> Result<Ticket, QueueFull> {
        self.room(self.waiters.len(), &key)?;
        let waiter = KeyWaiter::queued(request);
        let queue = self.queues.entry(key.clone()).or_default();
        self.last.0 += 1;
        queue.count += 1;
        if !waiter.reserves() {
            queue.queued.push_back(self.last);
        }
        self.waiters.insert(self.last, QueueEntry { key, waiter, data });
        Ok(self.last)
    }

    /// Whether a request waits in the queue of a key.
    #[must_use]
    pub fn has_queue<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        self.queues.get(key).is_some_and(|queue| !queue.queued.is_empty())
    }

    /// The data of a waiter; `None` if it was removed.
    pub fn data(&mut self, ticket: Ticket) -> Option<&mut W> {
        self.waiters.get_mut(&ticket).map(|entry| &mut entry.data)
    }

    /// Whether a waiter is in its queue: it has not passed.
    #[must_use]
    pub fn is_queued(&self, ticket: Ticket) -> bool {
        let queue = self.waiters.get(&ticket).and_then(|entry| self.queues.get(&entry.key));
        queue.is_some_and(|queue| queue.queued.binary_search(&ticket).is_ok())
    }

    /// All waiters with their data, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &W)> {
        self.waiters.iter().map(|(ticket, entry)| (*ticket, &entry.data))
    }

    /// The next step of a waiter of one key.
    pub(super) fn poll_key(
        &mut self,
        ticket: Ticket,
        now: Timestamp,
        event: KeyEvent,
    ) -> KeyPolled {
        if let KeyEvent::Observed(observed) = event {
            let pass_time = observed.map(|observed| self.earliest_pass(ticket, observed));
            let step = self.entry(ticket).waiter.observed(pass_time);
            return KeyPolled { step, wake: None };
        }
        let key = self.entry(ticket).key.clone();
        let is_head = self.head(&key) == Some(ticket);
        let waiter = &mut self.entry(ticket).waiter;
        let applied = waiter.operation();
        let step = waiter.advance(now, event, is_head);
        let has_passed = waiter.has_passed();
        let wake = match applied {
            Some(operation @ (Operation::Reserve { .. } | Operation::Refund(_))) => {
                let policy = waiter.request().policy.clone();
                self.applied(&key, &policy, operation, true)
            }
            _ if has_passed => self.leave(&key, ticket, true),
            // A denial that is recorded may begin a window.
            Some(operation @ Operation::Take(_)) if waiter.request().policy.records_denials() => {
                let policy = waiter.request().policy.clone();
                self.applied(&key, &policy, operation, true).filter(|head| *head != ticket)
            }
            _ => None,
        };
        KeyPolled { step, wake }
    }

    /// Removes a waiter of one key. Returns its data, the [refund](KeyWaiter::cancel) to apply, and the waiter to wake.
    pub(super) fn remove_key(
        &mut self,
        ticket: Ticket,
    ) -> Option<(W, Option<Operation<'static>>, Option<Ticket>)> {
        let QueueEntry { key, waiter, data } = self.waiters.remove(&ticket)?;
        let wake = self.leave(&key, ticket, false);
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.count -= 1;
            if queue.count == 0 {
                self.queues.remove(&key);
            }
        }
        Some((data, waiter.cancel(), wake))
    }

    /// An operation of a request that is not queued was applied to a key, and allowed or not. Returns the head of its queue
    /// if that may pass earlier than expected.
    pub fn applied<Q>(
        &mut self,
        key: &Q,
        policy: &Policy,
        operation: Operation,
        is_allowed: bool,
    ) -> Option<Ticket>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        match operation {
            Operation::Peek(_) => None,
            Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => {
                let head = self.changed(key);
                reached!(WaiterWokenByRefund if head.is_some() && matches!(operation, Operation::Refund(_)));
                head
            }
            // A settle frees units.
            Operation::Settle { .. } | Operation::Renew { .. } => {
                let head = self.changed(key);
                reached!(WaiterWokenBySettle if head.is_some() && matches!(operation, Operation::Settle { .. }));
                reached!(WaiterWokenByRenew if head.is_some() && matches!(operation, Operation::Renew { .. }));
                head
            }
            Operation::Take(_) | Operation::Reserve { .. } => self.take_applied(key, policy, true),
            Operation::Hold { .. } => {
                self.take_applied(key, policy, is_allowed || policy.records_denials())
            }
        }
    }

    /// The head expects takes under its own policy, which can only delay it, unless one begins the window into which
    /// holds that expire are then charged. A take under another policy migrates the state.
    fn take_applied<Q>(&mut self, key: &Q, policy: &Policy, is_recorded: bool) -> Option<Ticket>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let head = self.changed(key)?;
        let may_begin = is_recorded && policy.limits().iter().any(Limit::begins_with_use);
        let is_same = self.waiters[&head].waiter.request().policy.decides_like(policy);
        reached!(WaiterWokenByBegunWindow if may_begin && is_same);
        (may_begin || !is_same).then_some(head)
    }

    /// A key was changed in any way. Returns the head of its queue.
    pub fn changed<Q>(&mut self, key: &Q) -> Option<Ticket>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let queue = self.queues.get_mut(key)?;
        queue.drop_projection(&mut self.projected_bytes);
        queue.queued.front().copied()
    }

    /// Any key may have changed. Returns the heads of all queues.
    pub fn all_changed(&mut self) -> Vec<Ticket> {
        let Self { queues, projected_bytes, .. } = self;
        let heads = queues.values_mut().filter_map(|queue| {
            queue.drop_projection(projected_bytes);
            queue.queued.front().copied()
        });
        heads.collect()
    }

    fn entry(&mut self, ticket: Ticket) -> &mut QueueEntry<K, W> {
        self.waiters.get_mut(&ticket).expect("a waiter is polled until it is removed")
    }

    fn head(&self, key: &K) -> Option<Ticket> {
        self.queues.get(key)?.queued.front().copied()
    }

    /// Takes a waiter out of its queue, because it `passed` or is removed. Returns the new head if it was
    /// the head.
    fn leave(&mut self, key: &K, ticket: Ticket, passed: bool) -> Option<Ticket> {
        let queue = self.queues.get_mut(key)?;
        let index = queue.queued.binary_search(&ticket).ok()?;
        queue.queued.remove(index);
        reached!(HeadLeavesOthers if !passed && index == 0 && !queue.queued.is_empty());
        reached!(WaiterLeavesWithoutBeingHead if index > 0);
        let holds = queue.projection.as_mut().is_some_and(|it| it.remove(index, passed));
        if !holds || queue.queued.is_empty() {
            queue.drop_projection(&mut self.projected_bytes);
        }
        queue.queued.front().copied().filter(|_| index == 0)
    }

    /// A lower bound on when a queued waiter would pass, by the clock of its deadline, if the requests
    /// ahead of it passed as soon as they can and no others came; `None` if never. The bound is exact if
    /// all requests ahead of it have been computed.
    fn earliest_pass(&mut self, ticket: Ticket, mut observed: ObservedEntry) -> Option<Timestamp> {
        let Self { waiters, queues, projected_bytes, .. } = self;
        let QueueEntry { key, waiter, .. } = waiters.get(&ticket)?;
        let request = waiter.request();
        let queue = queues.get_mut(key)?;
        let index = queue.queued.partition_point(|it| *it < ticket);
        if index == 0 {
            return observed.pass_time(request).map(|at| observed.to_local(at));
        }
        let queued = |ticket: &Ticket| waiters[ticket].waiter.request();
        let kept = queue.projection.take();
        *projected_bytes -= kept.as_ref().map_or(0, Projection::bytes);
        let is_kept = kept.is_some();
        let valid =
            kept.filter(|kept| kept.is_still_valid(queue.queued.iter().map(queued), &mut observed));
        reached!(ProjectionIsContinued if valid.is_some());
        reached!(ProjectionIsOutOfDate if is_kept && valid.is_none());
        let mut projection = valid.unwrap_or_else(|| Projection::new(&observed));
        let computed = projection.computed().min(index);
        projection.advance(queue.queued.range(computed..index).map(queued), &observed);
        let pass_time = projection.pass_time(index, request, &mut observed);
        let bytes = projection.count_bytes();
        if *projected_bytes + bytes <= MAX_TOTAL_BYTES {
            *projected_bytes += bytes;
            queue.projection = Some(projection);
        }
        pass_time.map(|at| observed.to_local(at))
    }
}

impl WaitQueue {
    fn drop_projection(&mut self, projected_bytes: &mut usize) {
        *projected_bytes -= self.projection.take().map_or(0, |projection| projection.bytes());
    }
}

#[cfg(test)]
mod tests;
