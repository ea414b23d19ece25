//! The waiters of each key, in line: first come, first served.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use sluicegate_core::{Entry, Operation, Outcome, Retry, Timestamp, apply};

use super::server::Client;
use crate::rules::Rule;

/// The most that wait in all.
const MAX_WAITERS: usize = 10_000;
/// The most that wait for one key.
const MAX_WAITERS_OF_KEY: usize = 1_000;

/// There are too many waiters already, in words.
pub(crate) type Refusal = String;

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
    lines: HashMap<Arc<Place>, Line>,
    last: u64,
}

/// Who waits for one key.
#[derive(Debug, Default)]
struct Line {
    /// Numbers of waiters; they grow along the line.
    waiters: VecDeque<u64>,
    /// Those that have a departure and are not in line.
    held: usize,
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
    pub(crate) fn room(&self, place: &Place) -> Result<(), Refusal> {
        if self.waiters.len() >= MAX_WAITERS {
            return Err(format!("ERR {MAX_WAITERS} requests wait already, the most at a time"));
        }
        let there = self.lines.get(place).map_or(0, |line| line.waiters.len() + line.held);
        if there >= MAX_WAITERS_OF_KEY {
            return Err(format!(
                "ERR {MAX_WAITERS_OF_KEY} requests wait for this key already, the most at a time"
            ));
        }
        Ok(())
    }

    /// Adds one, at the end of the line unless it has its departure. Gives its number.
    pub(crate) fn add(&mut self, waiter: Waiter) -> u64 {
        self.last += 1;
        let line = self.lines.entry(Arc::clone(&waiter.request.place)).or_default();
        if waiter.departure.is_some() {
            line.held += 1;
        } else {
            line.waiters.push_back(self.last);
        }
        self.waiters.insert(self.last, waiter);
        self.last
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Waiter> {
        self.waiters.get_mut(&id)
    }

    /// The one that is the client `client`.
    pub(crate) fn of(&self, client: Client) -> Option<u64> {
        self.waiters.iter().find_map(|(&id, it)| (it.client == Some(client)).then_some(id))
    }

    /// Whether nobody stands before it.
    pub(crate) fn is_head(&self, id: u64) -> bool {
        let place = self.waiters.get(&id).map(|waiter| &waiter.request.place);
        place.and_then(|place| self.head(place)) == Some(id)
    }

    /// Who is to ask next for that key.
    pub(crate) fn head(&self, place: &Place) -> Option<u64> {
        self.lines.get(place)?.waiters.front().copied()
    }

    /// The heads of all lines.
    pub(crate) fn heads(&self) -> Vec<u64> {
        self.lines.values().filter_map(|line| line.waiters.front().copied()).collect()
    }

    /// What those who stand in line for that key ask for, in order, up to and with `last`; all if
    /// it is not among them.
    pub(crate) fn up_to(&self, place: &Place, last: u64) -> Vec<Request> {
        let Some(line) = self.lines.get(place) else { return Vec::new() };
        let ids = line.waiters.iter().take_while(|&&id| id <= last);
        ids.filter_map(|id| self.waiters.get(id)).map(|it| it.request.clone()).collect()
    }

    /// Out of the line, which moves up, and to be held until `departure`. Gives the new head.
    pub(crate) fn step_out(&mut self, id: u64, departure: Timestamp) -> Option<u64> {
        let waiter = self.waiters.get_mut(&id)?;
        waiter.departure = Some(departure);
        let line = self.lines.get_mut(&waiter.request.place)?;
        line.held += 1;
        line.leave(id)
    }

    /// Takes one away. Gives it, and the new head of its line if it was the head.
    pub(crate) fn remove(&mut self, id: u64) -> Option<(Waiter, Option<u64>)> {
        let waiter = self.waiters.remove(&id)?;
        let mut next = None;
        if let Some(line) = self.lines.get_mut(&waiter.request.place) {
            match waiter.departure {
                Some(_) => line.held -= 1,
                None => next = line.leave(id),
            }
            if line.waiters.is_empty() && line.held == 0 {
                self.lines.remove(&waiter.request.place);
            }
        }
        Some((waiter, next))
    }
}

impl Line {
    /// Takes one out of the line. If it was the head, gives the next one.
    fn leave(&mut self, id: u64) -> Option<u64> {
        let index = self.waiters.binary_search(&id).ok()?;
        self.waiters.remove(index);
        if index == 0 { self.waiters.front().copied() } else { None }
    }
}

/// When the last of `requests` would pass if all went in order from `now` on, each as soon as it
/// can, and nothing else came. Those that would miss their deadline go without. `None`: never.
pub(crate) fn project(
    mut entry: Option<Entry>,
    mut now: Timestamp,
    requests: &[Request],
) -> Option<Timestamp> {
    let (last, ahead) = requests.split_last()?;
    for request in ahead {
        if let Some(at) = passes(&mut entry, now, request)
            && at <= request.deadline
        {
            now = at;
            // It passes: it was asked.
            let _ = apply(&request.rule.policy, &mut entry, now, Operation::Take(request.cost));
        }
    }
    passes(&mut entry, now, last)
}

/// When `request` would pass if nothing else came. The entry stays as it is: a peek stores nothing.
fn passes(entry: &mut Option<Entry>, mut now: Timestamp, request: &Request) -> Option<Timestamp> {
    // Waiting as told is enough, so the second answer is the last.
    for _ in 0..2 {
        let peek = apply(&request.rule.policy, entry, now, Operation::Peek(request.cost)).ok()?;
        match peek.outcome {
            Outcome::Allow { .. } => return Some(now),
            Outcome::Deny { retry: Retry::After(wait) } => now = now + wait,
            Outcome::Deny { retry: Retry::Never } => return None,
        }
    }
    Some(now)
}
