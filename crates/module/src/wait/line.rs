//! All that wait, in the lines of their keys.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use sluicegate_commands::wait_queue::{ObservedEntry, QueueFull, QueuedRequest, WaitQueues};
use sluicegate_core::Timestamp;

use super::server::Client;
use crate::rules::Rule;

/// A key of one database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) database: i32,
    pub(crate) key: Box<[u8]>,
}

/// What somebody who waits asks for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) place: Arc<Place>,
    pub(crate) rule: Arc<Rule>,
    pub(crate) cost: u32,
    pub(crate) deadline: Timestamp,
}

impl Request {
    /// As others in line see it.
    pub(crate) fn in_line(&self) -> QueuedRequest {
        let Self { rule, cost, deadline, .. } = self;
        QueuedRequest { policy: rule.policy.clone(), cost: *cost, deadline: *deadline }
    }
}

/// Somebody who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) request: Request,
    /// `None` once it has gone.
    pub(crate) client: Option<Client>,
    /// The timer that is to wake it.
    pub(crate) timer: Option<u64>,
    /// When it may go, if it was assigned a departure: it stands in no line then.
    pub(crate) departure: Option<Timestamp>,
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    waiters: HashMap<u64, Waiter>,
    lines: WaitQueues<Arc<Place>, QueuedRequest>,
}

static LINES: Mutex<Option<Lines>> = Mutex::new(None);
/// How many wait: to see at a glance that nobody does.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// How many wait.
pub(crate) fn waiting() -> usize {
    WAITING.load(Ordering::Relaxed)
}

/// Looks at the lines, or changes them. `body` must not call the server.
pub(crate) fn lines<T>(body: impl FnOnce(&mut Lines) -> T) -> T {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = lines.get_or_insert_default();
    let answer = body(lines);
    WAITING.store(lines.waiters.len(), Ordering::Relaxed);
    answer
}

impl Lines {
    /// Whether another may wait for that key.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn room(&self, place: &Place) -> Result<(), QueueFull> {
        self.lines.check_capacity(place)
    }

    /// Adds one, at the end of the line unless it has its departure. Gives its number.
    pub(crate) fn add(&mut self, waiter: Waiter) -> u64 {
        let place = Arc::clone(&waiter.request.place);
        let id = match waiter.departure {
            Some(_) => self.lines.reserve(place),
            None => self.lines.enqueue(place, waiter.request.in_line()),
        };
        self.waiters.insert(id, waiter);
        id
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Waiter> {
        self.waiters.get_mut(&id)
    }

    /// The one that is the client `client`.
    pub(crate) fn of(&self, client: Client) -> Option<u64> {
        self.waiters.iter().find_map(|(&id, it)| (it.client == Some(client)).then_some(id))
    }

    /// Who is to ask next for that key, and for what.
    pub(crate) fn head(&self, place: &Place) -> Option<&(u64, QueuedRequest)> {
        self.lines.head(place)
    }

    /// The heads of all lines.
    pub(crate) fn heads(&self) -> Vec<u64> {
        self.lines.heads().map(|head| head.0).collect()
    }

    /// Something that is not in the line was taken from the key, or given back.
    pub(crate) fn changed(&mut self, place: &Place) {
        self.lines.invalidate(place);
    }

    /// When `request` would pass if those ahead of it went first: see
    /// [`earliest_pass`](WaitQueues::earliest_pass).
    pub(crate) fn projected(
        &mut self,
        request: &Request,
        id: Option<u64>,
        observed: ObservedEntry,
    ) -> Option<Timestamp> {
        self.lines.earliest_pass(&*request.place, id, &request.in_line(), observed)
    }

    /// It has passed, and its client is about to be answered. Gives the new head.
    pub(crate) fn passed(&mut self, id: u64) -> Option<u64> {
        let waiter = self.waiters.get(&id)?;
        self.lines.leave(&*waiter.request.place, id).map(|head| head.0)
    }

    /// Out of the line, which moves up, and to be held until `departure`. Gives the new head.
    pub(crate) fn step_out(&mut self, id: u64, departure: Timestamp) -> Option<u64> {
        let waiter = self.waiters.get_mut(&id)?;
        waiter.departure = Some(departure);
        self.lines.leave(&*waiter.request.place, id).map(|head| head.0)
    }

    /// Takes one away. Gives it, and the new head of its line if it was the head.
    pub(crate) fn remove(&mut self, id: u64) -> Option<(Waiter, Option<u64>)> {
        let waiter = self.waiters.remove(&id)?;
        let next = self.lines.remove(&*waiter.request.place, id).map(|head| head.0);
        Some((waiter, next))
    }
}
