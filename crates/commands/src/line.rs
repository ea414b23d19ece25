//! Those who wait (`SG.WAIT`), in line for each key: first come, first served.
//!
//! Only the head of a line asks; the others sleep until they are the head or their deadline has
//! come. What may let the head pass earlier (a refund, a reset, another policy) wakes it. Requests
//! that do not wait may pass the line. How somebody sleeps and is woken is the face's business.
//!
//! A request that arrives costs the same however many wait before it: when those would pass is worked
//! out once, a few at a time, and kept (`projection`).

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
};

use sluicegate_core::{Limit, Policy, Timestamp};

mod projection;

use self::projection::Projection;
pub use self::projection::{MAX_PROJECTED_ENTRY, Standing};

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

impl AsRef<Self> for Request {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// The lines of all keys: of each who stands there, by numbers that grow along the line.
#[derive(Debug)]
pub struct Lines<K, W> {
    lines: HashMap<K, Line<W>>,
    waiting: usize,
    last: u64,
    /// Bytes that the projections of all lines take up.
    projected: usize,
}

/// Who waits for one key.
#[derive(Debug)]
struct Line<W> {
    waiters: VecDeque<(u64, W)>,
    /// Those that have a departure and are not in line.
    held: usize,
    /// When the first of the waiters are expected to pass.
    projection: Option<Projection>,
}

impl<K, W> Default for Lines<K, W> {
    fn default() -> Self {
        Self { lines: HashMap::new(), waiting: 0, last: 0, projected: 0 }
    }
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), held: 0, projection: None }
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

    /// One that joined has passed. It leaves the line, which moves up, but still counts until it is gone.
    /// Gives the new head, if it was the head.
    pub fn step_out<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, number: u64) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        let line = self.lines.get_mut(key)?;
        let index = line.position(number)?;
        line.held += 1;
        let was_head = line.take(index, true, &mut self.projected);
        if was_head { self.head(key) } else { None }
    }

    /// One that joined or was held is gone. Gives the new head, if it was the head.
    pub fn leave<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, number: u64) -> Option<&(u64, W)>
    where
        K: Borrow<Q>,
    {
        let line = self.lines.get_mut(key)?;
        self.waiting -= 1;
        let was_head = if let Some(index) = line.position(number) {
            line.take(index, false, &mut self.projected)
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
}

impl<W> Line<W> {
    fn len(&self) -> usize {
        self.waiters.len() + self.held
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&number, |(it, _)| *it).ok()
    }

    /// Takes one out of the line, since it `passed` or since it left. Whether it was the head. `projected`:
    /// bytes of all projections.
    fn take(&mut self, index: usize, passed: bool, projected: &mut usize) -> bool {
        self.waiters.remove(index);
        let holds = self.projection.as_mut().is_some_and(|it| it.removed(index, passed));
        if !holds || self.waiters.is_empty() {
            self.forget_projection(projected);
        }
        index == 0
    }

    fn forget_projection(&mut self, projected: &mut usize) {
        *projected -= self.projection.take().map_or(0, |projection| projection.bytes());
    }
}

/// Whether requests under `policy` are assigned a departure at once and stand in no line: all of the
/// gcra machine, one a queue.
#[must_use]
pub fn departs(policy: &Policy) -> bool {
    policy.can_reserve() && policy.limits().iter().any(Limit::is_queue)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let names = |lines: &Lines<u8, &'static str>| -> Vec<_> {
            lines.lines[&0].waiters.iter().map(|(_, name)| *name).collect()
        };
        assert_eq!(lines.head(&0), Some(&(numbers[0], "a")));
        assert_eq!(lines.leave(&0, numbers[1]), None);
        assert_eq!(lines.step_out(&0, numbers[0]), Some(&(numbers[2], "c")));
        assert_eq!(lines.step_out(&0, numbers[0]), None);
        assert_eq!((names(&lines), lines.waiting()), (vec!["c", "d"], 3));
        assert_eq!(lines.leave(&0, numbers[0]), None);
        assert_eq!(lines.heads().collect::<Vec<_>>(), [&(numbers[2], "c")]);
        assert_eq!(lines.leave(&0, numbers[2]), Some(&(numbers[3], "d")));
        assert_eq!(lines.leave(&0, numbers[3]), None);
        assert_eq!(lines.waiting(), 0);
    }
}
