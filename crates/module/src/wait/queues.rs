//! The wait queues of this process, and the module's data for each waiting client.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use sluicegate_commands::RepeatedKeys;
use sluicegate_core::wait::{self, Ticket, Waiter};
use smallvec::SmallVec;

use super::client::Client;
use crate::{api::OnTimer, policy_cache::CachedPolicy};

/// A key of one database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) database: i32,
    pub(crate) name: Box<[u8]>,
}

/// A request that waits: takes, or holds under one id.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) waiter: Waiter<Arc<QueueKey>>,
    /// The policy of each key.
    pub(super) policies: SmallVec<[Arc<CachedPolicy>; 1]>,
    /// The keys that are given more than once, if the reply has all decisions.
    pub(super) repeated: Option<RepeatedKeys>,
}

/// A waiting client.
#[derive(Debug)]
pub(super) struct WaitingClient {
    /// Its request, while it sleeps.
    pub(super) request: Option<Box<WaitingRequest>>,
    /// `None` before it is blocked, and after it has disconnected.
    pub(super) client: Option<Client>,
    /// The timer that wakes it.
    pub(super) timer: Option<u64>,
    /// The data of its timer.
    pub(super) due: OnTimer,
}

pub(super) type WaitQueues = wait::WaitQueues<Arc<QueueKey>, WaitingClient>;

static QUEUES: Mutex<Option<WaitQueues>> = Mutex::new(None);
/// The requests of blocked clients, to find that of one that disconnects.
static TICKETS: Mutex<BTreeMap<Client, Ticket>> = Mutex::new(BTreeMap::new());
/// Number of waiting clients, to check without a lock whether there are any.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Number of waiting clients.
pub(crate) fn waiting() -> usize {
    WAITING.load(Ordering::Relaxed)
}

/// Runs `body` on the queues. It must not call the server, because the server may call back.
pub(super) fn queues<T>(body: impl FnOnce(&mut WaitQueues) -> T) -> T {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    let queues = queues.get_or_insert_default();
    let answer = body(queues);
    WAITING.store(queues.waiting(), Ordering::Relaxed);
    answer
}

/// Runs `body` on the requests of blocked clients. It must not call the server, because the server may call back.
pub(super) fn tickets<T>(body: impl FnOnce(&mut BTreeMap<Client, Ticket>) -> T) -> T {
    body(&mut TICKETS.lock().unwrap_or_else(PoisonError::into_inner))
}
