//! The waiters of each key, in line: first come, first served.
//!
//! Only the head of a line asks; the others sleep until they are the head or their deadline has
//! come. What may let the head pass earlier (a refund, a reset, another policy) wakes it. Requests
//! that do not wait may pass the line.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use sluicegate_core::{Entry, Operation, Outcome, Policy, Retry, Timestamp, apply};
use tokio::sync::Notify;

/// The most that wait in all.
const MAX_WAITERS: usize = 10_000;
/// The most that wait for one key.
const MAX_WAITERS_OF_KEY: usize = 1_000;

/// There are too many waiters already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    All,
    Key,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// The lines of all keys.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    inner: Mutex<Inner>,
    /// How many wait in all: to see without a lock that nobody does.
    total: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    lines: HashMap<Box<[u8]>, Line>,
    last: u64,
}

/// Who waits for one key.
#[derive(Debug, Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// Those that have a departure and are not in line.
    held: usize,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    request: Request,
    turn: Arc<Notify>,
}

/// What somebody in line asks for.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) policy: Policy,
    pub(super) cost: u32,
    pub(super) deadline: Timestamp,
}

impl Lines {
    /// A place for one that has a departure.
    pub(super) fn hold(&self, key: &[u8]) -> Result<Place<'_>, Refusal> {
        self.enter(key, |line, _| line.held += 1)
    }

    /// A place at the end of the line.
    pub(super) fn join(&self, key: &[u8], request: Request) -> Result<Place<'_>, Refusal> {
        self.enter(key, |line, place| {
            place.in_line = true;
            line.waiters.push_back(Waiter { id: place.id, request, turn: Arc::clone(&place.turn) });
        })
    }

    fn enter(
        &self,
        key: &[u8],
        add: impl FnOnce(&mut Line, &mut Place<'_>),
    ) -> Result<Place<'_>, Refusal> {
        let mut inner = self.inner.lock();
        if self.waiting() >= MAX_WAITERS {
            return Err(Refusal::All);
        }
        inner.last += 1;
        let mut place = Place {
            lines: self,
            key: key.into(),
            id: inner.last,
            turn: Arc::default(),
            in_line: false,
            entered: false,
        };
        let line = inner.lines.entry(key.into()).or_default();
        if line.len() >= MAX_WAITERS_OF_KEY {
            return Err(Refusal::Key);
        }
        add(line, &mut place);
        place.entered = true;
        self.total.fetch_add(1, Ordering::SeqCst);
        Ok(place)
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.total.load(Ordering::SeqCst)
    }

    /// Less may be in use of `key` than before: its head asks again.
    pub(crate) fn changed(&self, key: &[u8]) {
        self.wake(key, |_| true);
    }

    /// `key` was asked under `policy`: if the head asks under another, what it waits for changed.
    pub(crate) fn taken(&self, key: &[u8], policy: &Policy) {
        self.wake(key, |head| !head.same_rule(policy));
    }

    fn wake(&self, key: &[u8], concerns: impl FnOnce(&Policy) -> bool) {
        if self.waiting() == 0 {
            return;
        }
        let inner = self.inner.lock();
        if let Some(head) = inner.lines.get(key).and_then(|line| line.waiters.front())
            && concerns(&head.request.policy)
        {
            head.turn.notify_one();
        }
    }
}

impl Line {
    fn len(&self) -> usize {
        self.waiters.len() + self.held
    }

    /// Takes one out of the line. If it was the head, the next one is told.
    fn remove(&mut self, id: u64) {
        // Ids grow along the line.
        let Ok(index) = self.waiters.binary_search_by_key(&id, |waiter| waiter.id) else { return };
        self.waiters.remove(index);
        if index == 0
            && let Some(head) = self.waiters.front()
        {
            head.turn.notify_one();
        }
    }
}

/// A place among those that wait for a key; given up when dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    lines: &'a Lines,
    key: Box<[u8]>,
    id: u64,
    turn: Arc<Notify>,
    in_line: bool,
    entered: bool,
}

impl Place<'_> {
    /// Whether nobody stands before it.
    pub(super) fn is_head(&self) -> bool {
        let inner = self.lines.inner.lock();
        let head = inner.lines.get(&self.key).and_then(|line| line.waiters.front());
        head.is_some_and(|head| head.id == self.id)
    }

    /// Ready when it has become the head, or as the head should ask again.
    pub(super) async fn turn(&self) {
        self.turn.notified().await;
    }

    /// What those before it ask for, in order, and at last it itself.
    pub(super) fn up_to_here(&self) -> Vec<Request> {
        let inner = self.lines.inner.lock();
        let Some(line) = inner.lines.get(&self.key) else { return Vec::new() };
        let here = line.waiters.iter().take_while(|waiter| waiter.id <= self.id);
        here.map(|waiter| waiter.request.clone()).collect()
    }
}

impl Place<'_> {
    /// Out of the line, which moves up, but not gone: it still counts.
    pub(super) fn step_out(&mut self) {
        let mut inner = self.lines.inner.lock();
        if let Some(line) = inner.lines.get_mut(&self.key)
            && std::mem::take(&mut self.in_line)
        {
            line.remove(self.id);
            line.held += 1;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.entered {
            return;
        }
        let mut inner = self.lines.inner.lock();
        self.lines.total.fetch_sub(1, Ordering::SeqCst);
        let Some(line) = inner.lines.get_mut(&self.key) else { return };
        if self.in_line {
            line.remove(self.id);
        } else {
            line.held -= 1;
        }
        if line.len() == 0 {
            inner.lines.remove(&self.key);
        }
    }
}

/// When the last of `requests` would pass if all went in order from `now` on, each as soon as it
/// can, and nothing else came. Those that would miss their deadline go without. `None`: never.
pub(super) fn project(
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
            let _ = apply(&request.policy, &mut entry, now, Operation::Take(request.cost));
        }
    }
    passes(&mut entry, now, last)
}

/// When `request` would pass if nothing else came. The entry stays as it is: a peek stores nothing.
fn passes(entry: &mut Option<Entry>, mut now: Timestamp, request: &Request) -> Option<Timestamp> {
    // Waiting as told is enough, so the second answer is the last.
    for _ in 0..2 {
        let peek = apply(&request.policy, entry, now, Operation::Peek(request.cost)).ok()?;
        match peek.outcome {
            Outcome::Allow { .. } => return Some(now),
            Outcome::Deny { retry: Retry::After(wait) } => now = now + wait,
            Outcome::Deny { retry: Retry::Never } => return None,
        }
    }
    Some(now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(cost: u32, deadline: u64) -> Request {
        Request { policy: "gcra:1/1s".parse().unwrap(), cost, deadline: at(deadline) }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    #[test]
    fn those_ahead_go_first_unless_they_come_too_late() {
        let (ample, scant) = (request(1, u64::MAX >> 12), request(1, 500_000));
        let when = |requests: &[Request]| project(None, at(0), requests).map(Timestamp::as_micros);
        assert_eq!(when(&[]), None);
        assert_eq!(when(std::slice::from_ref(&ample)), Some(0));
        assert_eq!(when(&[ample.clone(), ample.clone()]), Some(1_000_000));
        assert_eq!(when(&[ample.clone(), ample.clone(), ample.clone()]), Some(2_000_000));
        assert_eq!(when(&[ample.clone(), scant, ample.clone()]), Some(1_000_000));
        assert_eq!(when(&[ample.clone(), request(2, 0)]), None);
        assert_eq!(when(&[request(2, 0), ample]), Some(0));
    }

    #[test]
    fn a_line_is_bounded_and_leaves_nothing_behind() {
        let lines = Lines::default();
        let mut places = Vec::new();
        for key in 0..10_u8 {
            for _ in 0..MAX_WAITERS_OF_KEY {
                places.push(lines.join(&[key], request(1, 0)).unwrap());
            }
            if key < 9 {
                assert_eq!(lines.hold(&[key]).unwrap_err(), Refusal::Key);
            }
        }
        assert_eq!(lines.join(b"other", request(1, 0)).unwrap_err(), Refusal::All);
        assert_eq!(lines.waiting(), MAX_WAITERS);
        places.clear();
        assert_eq!(lines.waiting(), 0);
        assert!(lines.inner.lock().lines.is_empty());
    }

    #[test]
    fn refused_places_leave_no_line() {
        let lines = Lines::default();
        let held: Vec<_> = (0..MAX_WAITERS_OF_KEY).map(|_| lines.hold(b"a").unwrap()).collect();
        assert_eq!(lines.join(b"a", request(1, 0)).unwrap_err(), Refusal::Key);
        drop(held);
        assert!(lines.inner.lock().lines.is_empty());
    }

    #[tokio::test]
    async fn the_next_is_told_when_the_head_leaves() {
        let lines = Lines::default();
        let first = lines.join(b"a", request(1, 0)).unwrap();
        let second = lines.join(b"a", request(1, 0)).unwrap();
        let third = lines.join(b"a", request(1, 0)).unwrap();
        assert!(first.is_head() && !second.is_head());
        assert_eq!(third.up_to_here().len(), 3);
        drop(second);
        assert!(tokio::time::timeout(Duration::ZERO, third.turn()).await.is_err());
        drop(first);
        third.turn().await;
        assert!(third.is_head());
        let mut fourth = lines.join(b"a", request(1, 0)).unwrap();
        fourth.step_out();
        fourth.step_out();
        assert_eq!((lines.waiting(), third.up_to_here().len(), fourth.is_head()), (2, 1, false));
        drop(fourth);
        assert_eq!(lines.waiting(), 1);
        lines.changed(b"a");
        third.turn().await;
    }
}
