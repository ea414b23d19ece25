//! The waiting requests, in one queue per key.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use sluicegate_commands::wait_queue::{self, ObservedEntry, QueueFull, QueuedRequest};
use sluicegate_core::Timestamp;

use super::server::Client;
use crate::policy_cache::CachedPolicy;

/// A key of one database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) database: i32,
    pub(crate) name: Box<[u8]>,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: Arc<QueueKey>,
    pub(crate) cached: Arc<CachedPolicy>,
    pub(crate) cost: u32,
    pub(crate) deadline: Timestamp,
}

impl Request {
    /// The request as the queue sees it.
    pub(crate) fn in_queue(&self) -> QueuedRequest {
        let Self { cached, cost, deadline, .. } = self;
        QueuedRequest { policy: cached.policy.clone(), cost: *cost, deadline: *deadline }
    }
}

/// A waiting request with its client.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    pub(crate) request: Request,
    /// `None` after it has disconnected.
    pub(crate) client: Option<Client>,
    /// The timer that wakes it.
    pub(crate) timer: Option<u64>,
    /// When the request may be sent, if that is assigned: then it is in no queue.
    pub(crate) departure: Option<Timestamp>,
}

/// All waiting requests.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    waiters: HashMap<u64, QueueEntry>,
    queues: wait_queue::WaitQueues<Arc<QueueKey>, QueuedRequest>,
}

static QUEUES: Mutex<Option<WaitQueues>> = Mutex::new(None);
/// Number of waiting requests, to check without a lock that there is none.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Number of waiting requests.
pub(crate) fn waiting() -> usize {
    WAITING.load(Ordering::Relaxed)
}

/// Runs `body` on the queues. It must not call the server.
pub(crate) fn queues<T>(body: impl FnOnce(&mut WaitQueues) -> T) -> T {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    let queues = queues.get_or_insert_default();
    let answer = body(queues);
    WAITING.store(queues.waiters.len(), Ordering::Relaxed);
    answer
}

impl WaitQueues {
    /// Checks whether another request may wait for `key`.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn room(&self, key: &QueueKey) -> Result<(), QueueFull> {
        self.queues.check_capacity(key)
    }

    /// Adds a request, to the end of its queue unless its departure is assigned. Returns its number.
    pub(crate) fn add(&mut self, waiter: QueueEntry) -> u64 {
        let key = Arc::clone(&waiter.request.key);
        let id = match waiter.departure {
            Some(_) => self.queues.reserve(key),
            None => self.queues.enqueue(key, waiter.request.in_queue()),
        };
        self.waiters.insert(id, waiter);
        id
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut QueueEntry> {
        self.waiters.get_mut(&id)
    }

    /// The number of the request of `client`.
    pub(crate) fn of(&self, client: Client) -> Option<u64> {
        self.waiters.iter().find_map(|(&id, it)| (it.client == Some(client)).then_some(id))
    }

    /// The first request of the queue of `key`.
    pub(crate) fn head(&self, key: &QueueKey) -> Option<&(u64, QueuedRequest)> {
        self.queues.head(key)
    }

    /// The first requests of all queues.
    pub(crate) fn heads(&self) -> Vec<u64> {
        self.queues.heads().map(|head| head.0).collect()
    }

    /// A request outside of the queue has changed the key.
    pub(crate) fn changed(&mut self, key: &QueueKey) {
        self.queues.invalidate(key);
    }

    /// When `request` would pass after those ahead of it: see
    /// [`earliest_pass`](wait_queue::WaitQueues::earliest_pass).
    pub(crate) fn projected(
        &mut self,
        request: &Request,
        id: Option<u64>,
        observed: ObservedEntry,
    ) -> Option<Timestamp> {
        self.queues.earliest_pass(&*request.key, id, &request.in_queue(), observed)
    }

    /// Removes a request that has passed from its queue. Returns the new head.
    pub(crate) fn passed(&mut self, id: u64) -> Option<u64> {
        let waiter = self.waiters.get(&id)?;
        self.queues.leave(&*waiter.request.key, id).map(|head| head.0)
    }

    /// Moves a request out of its queue, to be held until `departure`. Returns the new head.
    pub(crate) fn step_out(&mut self, id: u64, departure: Timestamp) -> Option<u64> {
        let waiter = self.waiters.get_mut(&id)?;
        waiter.departure = Some(departure);
        self.queues.leave(&*waiter.request.key, id).map(|head| head.0)
    }

    /// Removes a request. Returns it, and the new head if it was the head.
    pub(crate) fn remove(&mut self, id: u64) -> Option<(QueueEntry, Option<u64>)> {
        let waiter = self.waiters.remove(&id)?;
        let next = self.queues.remove(&*waiter.request.key, id).map(|head| head.0);
        Some((waiter, next))
    }
}
