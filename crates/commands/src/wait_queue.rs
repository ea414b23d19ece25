//! Wait queues (`SG.WAIT`): one for each key, first come, first served.
//!
//! Only the head of a queue asks the store; the others sleep until they become the head or their deadline
//! comes. A change that may let the head pass earlier (a refund, a reset, another policy) wakes it.
//! Requests that do not wait may overtake the queue. The caller sleeps and wakes; this file does neither.
//!
//! The cost of an arrival does not depend on the length of the queue: expected times are computed once, a
//! few at a time, and kept (`projection`).

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
};

use sluicegate_core::{Limit, Policy, Timestamp};

mod projection;
mod request;

use self::projection::{MAX_TOTAL_BYTES, Projection};
pub use self::request::{ObservedEntry, QueuedRequest};

/// Upper bound on the waiters of all keys.
pub const MAX_WAITERS: usize = 10_000;
/// Upper bound on the waiters of one key.
pub const MAX_WAITERS_OF_KEY: usize = 1_000;
/// Upper bound on the bytes of an entry that is copied to compute a projection. With a larger one the
/// request is decided as if it were alone.
pub const MAX_PROJECTED_ENTRY: usize = 256 * 1024;

/// Why no other request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// [`MAX_WAITERS`] requests wait.
    All,
    /// [`MAX_WAITERS_OF_KEY`] requests wait for this key.
    Key,
}

impl fmt::Display for QueueFull {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => {
                write!(formatter, "{MAX_WAITERS} requests wait already, the most at a time")
            }
            Self::Key => write!(
                formatter,
                "{MAX_WAITERS_OF_KEY} requests wait for this key already, the most at a time"
            ),
        }
    }
}

/// The wait queues of all keys. A waiter has a number; numbers grow along the queue.
#[derive(Debug)]
pub struct WaitQueues<K, W> {
    queues: HashMap<K, WaitQueue<W>>,
    waiting: usize,
    last: u64,
    /// Bytes of the projections of all queues.
    projected_bytes: usize,
}

/// The waiters of one key.
#[derive(Debug)]
struct WaitQueue<W> {
    waiters: VecDeque<(u64, W)>,
    /// Waiters that count but are not queued: they have their time of departure, or have just passed.
    reserved: usize,
    /// When the first waiters are expected to pass.
    projection: Option<Projection>,
}

impl<K, W> Default for WaitQueues<K, W> {
    fn default() -> Self {
        Self { queues: HashMap::new(), waiting: 0, last: 0, projected_bytes: 0 }
    }
}

impl<W> Default for WaitQueue<W> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), reserved: 0, projection: None }
    }
}

impl<K: Hash + Eq, W> WaitQueues<K, W> {
    /// The number of waiters, queued or reserved.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether another request may wait for that key.
    ///
    /// # Errors
    /// [`QueueFull`] if too many wait.
    pub fn check_capacity<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Result<(), QueueFull>
    where
        K: Borrow<Q>,
    {
        if self.waiting >= MAX_WAITERS {
            return Err(QueueFull::All);
        }
        let full = self.queues.get(key).is_some_and(|queue| queue.len() >= MAX_WAITERS_OF_KEY);
        if full { Err(QueueFull::Key) } else { Ok(()) }
    }

    /// Adds a waiter at the end of the queue, and returns its number.
    pub fn enqueue(&mut self, key: K, waiter: W) -> u64 {
        self.last += 1;
        self.waiting += 1;
        self.queues.entry(key).or_default().waiters.push_back((self.last, waiter));
        self.last
    }

    /// Counts a waiter that has its time of departure and is not queued, and returns its number.
    pub fn reserve(&mut self, key: K) -> u64 {
        self.last += 1;
        self.waiting += 1;
        self.queues.entry(key).or_default().reserved += 1;
        self.last
    }

    /// Takes a waiter that has passed out of its queue. It still counts until [`remove`](Self::remove).
    /// Returns the new head if it was the head.
    pub fn leave<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, number: u64) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        let queue = self.queues.get_mut(key)?;
        let index = queue.position(number)?;
        queue.reserved += 1;
        let was_head = queue.take(index, true, &mut self.projected_bytes);
        if was_head { self.head(key) } else { None }
    }

    /// Removes a waiter, queued or reserved. Returns the new head if it was the head.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, number: u64) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        let queue = self.queues.get_mut(key)?;
        self.waiting -= 1;
        let was_head = if let Some(index) = queue.position(number) {
            queue.take(index, false, &mut self.projected_bytes)
        } else {
            queue.reserved -= 1;
            false
        };
        if queue.len() == 0 {
            self.queues.remove(key);
        }
        if was_head { self.head(key) } else { None }
    }

    /// The first waiter of a key.
    pub fn head<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        self.queues.get(key)?.waiters.front()
    }

    /// The first waiter of each key.
    pub fn heads(&self) -> impl Iterator<Item = &(u64, W)> {
        self.queues.values().filter_map(|queue| queue.waiters.front())
    }

    /// Drops the projection of a key, because a request outside its queue changed its state.
    pub fn invalidate<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.drop_projection(&mut self.projected_bytes);
        }
    }
}

impl<K: Hash + Eq, W: AsRef<QueuedRequest>> WaitQueues<K, W> {
    /// A lower bound on when `request` would pass, by the clock of the store, if the requests ahead of it
    /// passed as soon as they can and no others came; `None` if never. `number`: that of its waiter, if
    /// it is queued already; otherwise it is about to be queued. The bound is exact if all requests
    /// ahead of it have been computed.
    pub fn earliest_pass<Q: Hash + Eq + ?Sized>(
        &mut self,
        key: &Q,
        number: Option<u64>,
        request: &QueuedRequest,
        mut observed: ObservedEntry,
    ) -> Option<Timestamp>
    where
        K: Borrow<Q>,
    {
        let queue = self.queues.get_mut(key).filter(|queue| !queue.waiters.is_empty());
        let Some(queue) = queue else { return observed.pass_time(request) };
        let index = number.map_or(queue.waiters.len(), |number| {
            queue.waiters.partition_point(|(it, _)| *it < number)
        });
        if index == 0 {
            return observed.pass_time(request);
        }
        let kept = queue.projection.take();
        self.projected_bytes -= kept.as_ref().map_or(0, Projection::bytes);
        let mut projection = kept
            .filter(|kept| kept.holds(&queue.waiters, &mut observed))
            .unwrap_or_else(|| Projection::new(&observed));
        projection.advance(&queue.waiters, index, &observed);
        let pass_time = projection.pass_time(index, request, &mut observed);
        let bytes = projection.count_bytes();
        if self.projected_bytes + bytes <= MAX_TOTAL_BYTES {
            self.projected_bytes += bytes;
            queue.projection = Some(projection);
        }
        pass_time
    }
}

impl<W> WaitQueue<W> {
    fn len(&self) -> usize {
        self.waiters.len() + self.reserved
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&number, |(it, _)| *it).ok()
    }

    /// Takes a waiter out of the queue, because it `passed` or was removed. Whether it was the head.
    fn take(&mut self, index: usize, passed: bool, projected_bytes: &mut usize) -> bool {
        self.waiters.remove(index);
        let holds = self.projection.as_mut().is_some_and(|it| it.remove(index, passed));
        if !holds || self.waiters.is_empty() {
            self.drop_projection(projected_bytes);
        }
        index == 0
    }

    fn drop_projection(&mut self, projected_bytes: &mut usize) {
        *projected_bytes -= self.projection.take().map_or(0, |projection| projection.bytes());
    }
}

/// Whether requests under `policy` get their time of departure at once and are not queued: all limits are
/// of the gcra machine, and one is a queue.
#[must_use]
pub fn departs(policy: &Policy) -> bool {
    policy.can_reserve() && policy.limits().iter().any(Limit::is_queue)
}

#[cfg(test)]
mod tests;
