//! Those who wait (`SG.WAIT`), in line for each key: first come, first served.
//!
//! Only the head of a line asks; the others sleep until they are the head or their deadline has
//! come. What may let the head pass earlier (a refund, a reset, another policy) wakes it. Requests
//! that do not wait may pass the line. How somebody sleeps and is woken is the face's business.

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
};

use sluicegate_core::{
    Entry, GcraName, Limit, Operation, Outcome, Policy, Retry, Timestamp, apply,
};

/// The most that wait in all.
pub const MAX_WAITERS: usize = 10_000;
/// The most that wait for one key.
pub const MAX_WAITERS_OF_KEY: usize = 1_000;

/// There are too many waiters already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// In all.
    All,
    /// For this key.
    Key,
}

impl fmt::Display for Refusal {
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

/// What somebody in line asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The policy to pass under.
    pub policy: Policy,
    /// Units to be taken.
    pub cost: u32,
    /// The last moment at which to pass is of use.
    pub deadline: Timestamp,
}

/// The lines of all keys: of each who stands there, by numbers that grow along the line.
#[derive(Debug)]
pub struct Lines<K, W> {
    lines: HashMap<K, Line<W>>,
    waiting: usize,
    last: u64,
}

/// Who waits for one key.
#[derive(Debug)]
struct Line<W> {
    waiters: VecDeque<(u64, W)>,
    /// Those that have a departure and are not in line.
    held: usize,
}

impl<K, W> Default for Lines<K, W> {
    fn default() -> Self {
        Self { lines: HashMap::new(), waiting: 0, last: 0 }
    }
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), held: 0 }
    }
}

impl<K: Hash + Eq, W> Lines<K, W> {
    /// How many wait, in line or for their departure.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether another may wait for that key.
    ///
    /// # Errors
    /// There are too many.
    pub fn room<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
    {
        if self.waiting >= MAX_WAITERS {
            return Err(Refusal::All);
        }
        let full = self.lines.get(key).is_some_and(|line| line.len() >= MAX_WAITERS_OF_KEY);
        if full { Err(Refusal::Key) } else { Ok(()) }
    }

    /// Adds one at the end of the line. Gives its number.
    pub fn join(&mut self, key: K, waiter: W) -> u64 {
        self.last += 1;
        self.waiting += 1;
        self.lines.entry(key).or_default().waiters.push_back((self.last, waiter));
        self.last
    }

    /// Adds one that has its departure and stands in no line. Gives its number.
    pub fn hold(&mut self, key: K) -> u64 {
        self.last += 1;
        self.waiting += 1;
        self.lines.entry(key).or_default().held += 1;
        self.last
    }

    /// One that joined leaves the line, which moves up, but still counts. Gives the new head, if it
    /// was the head.
    pub fn step_out<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, number: u64) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        let line = self.lines.get_mut(key)?;
        let index = line.position(number)?;
        line.held += 1;
        if line.take(index) { self.head(key) } else { None }
    }

    /// One that joined or was held is gone. Gives the new head, if it was the head.
    pub fn leave<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, number: u64) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        let line = self.lines.get_mut(key)?;
        self.waiting -= 1;
        let was_head = if let Some(index) = line.position(number) {
            line.take(index)
        } else {
            line.held -= 1;
            false
        };
        if line.len() == 0 {
            self.lines.remove(key);
        }
        if was_head { self.head(key) } else { None }
    }

    /// Who is to ask next for that key.
    pub fn head<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        self.lines.get(key)?.waiters.front()
    }

    /// The heads of all lines.
    pub fn heads(&self) -> impl Iterator<Item = &(u64, W)> {
        self.lines.values().filter_map(|line| line.waiters.front())
    }

    /// Those who stand in line for that key, in order, up to and with `last`; all if it is not among
    /// them.
    pub fn up_to<Q: Hash + Eq + ?Sized>(&self, key: &Q, last: u64) -> impl Iterator<Item = &W>
    where
        K: Borrow<Q>,
    {
        let waiters = self.lines.get(key).into_iter().flat_map(|line| &line.waiters);
        waiters.take_while(move |(number, _)| *number <= last).map(|(_, waiter)| waiter)
    }
}

impl<W> Line<W> {
    fn len(&self) -> usize {
        self.waiters.len() + self.held
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&number, |(it, _)| *it).ok()
    }

    /// Takes one out of the line. Whether it was the head.
    fn take(&mut self, index: usize) -> bool {
        self.waiters.remove(index);
        index == 0
    }
}

/// When the last of `requests` would pass if all went in order from `now` on, each as soon as it
/// can, and nothing else came. Those that would miss their deadline go without. `None`: never.
#[must_use]
pub fn project(
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

/// Whether requests under `policy` are assigned a departure at once and stand in no line: all of the
/// gcra machine, one a queue.
#[must_use]
pub fn departs(policy: &Policy) -> bool {
    policy.limits().iter().all(|limit| matches!(limit, Limit::Gcra(_)))
        && policy.limits().iter().any(is_queue)
}

/// Whether what is admitted may have to be held back.
#[must_use]
pub fn is_queue(limit: &Limit) -> bool {
    matches!(limit, Limit::Gcra(gcra) if gcra.name() == GcraName::LeakyQueue)
}

#[cfg(test)]
mod tests {
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
        let mut lines = Lines::<usize, ()>::default();
        let mut numbers = Vec::new();
        for key in 0..10 {
            for place in 0..MAX_WAITERS_OF_KEY {
                assert_eq!(lines.room(&key), Ok(()));
                let held = place % 3 == 0;
                numbers.push((key, if held { lines.hold(key) } else { lines.join(key, ()) }));
            }
            if key < 9 {
                assert_eq!(lines.room(&key), Err(Refusal::Key));
            }
        }
        assert_eq!((lines.room(&11), lines.waiting()), (Err(Refusal::All), MAX_WAITERS));
        for (key, number) in numbers {
            lines.leave(&key, number);
        }
        assert_eq!((lines.room(&11), lines.waiting()), (Ok(()), 0));
        assert!(lines.lines.is_empty());
    }

    #[test]
    fn who_leaves_makes_room_for_the_next() {
        let mut lines = Lines::default();
        let numbers = ["a", "b", "c", "d"].map(|name| lines.join(0, name));
        let names = |lines: &Lines<u8, &'static str>, last| -> Vec<_> {
            lines.up_to(&0, last).copied().collect()
        };
        assert_eq!(lines.head(&0), Some(&(numbers[0], "a")));
        assert_eq!(names(&lines, numbers[2]), ["a", "b", "c"]);
        assert_eq!(lines.leave(&0, numbers[1]), None);
        assert_eq!(lines.step_out(&0, numbers[0]), Some(&(numbers[2], "c")));
        assert_eq!(lines.step_out(&0, numbers[0]), None);
        assert_eq!((names(&lines, u64::MAX), lines.waiting()), (vec!["c", "d"], 3));
        assert_eq!(lines.leave(&0, numbers[0]), None);
        assert_eq!(lines.heads().collect::<Vec<_>>(), [&(numbers[2], "c")]);
        assert_eq!(lines.leave(&0, numbers[2]), Some(&(numbers[3], "d")));
        assert_eq!(lines.leave(&0, numbers[3]), None);
        assert_eq!(lines.waiting(), 0);
    }
}
