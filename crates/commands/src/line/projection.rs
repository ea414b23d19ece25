//! When the waiters of a key are expected to pass, worked out a few at a time.
//!
//! A request that could not pass before its deadline, if those before it went first and nothing else
//! came, is denied on arrival. To work that out from the head of the line for each request would let
//! a client buy a thousand decisions with one command. So the expected times are kept, with the state
//! of the key behind the last of them, and each request carries on from there.
//!
//! Invariant: an expected time is never too late, so that no request is denied that might pass. What
//! is asked by others in this process makes the line forget its projection ([`Lines::changed`]); what
//! happens elsewhere shows when the first would not pass as expected.

use std::{borrow::Borrow, collections::VecDeque, hash::Hash, time::Duration};

use sluicegate_core::{Entry, Operation, Outcome, Retry, Timestamp, apply};

use super::{Line, Lines, Request};

/// An entry that holds more bytes is not copied to work out a line: the request is asked by itself.
pub const MAX_PROJECTED_ENTRY: usize = 256 * 1024;
/// What the projections of all lines take up at most, in bytes.
const MAX_PROJECTED: usize = 16 * 1024 * 1024;
/// How many waiters are worked out for one request: with it, at most 20 decisions.
const MAX_STEPS: usize = 5;
/// By how much the first may be later than expected before the line is worked out once more.
const TOLERANCE: Duration = Duration::from_millis(10);

/// What is stored of a key, and when.
#[derive(Debug)]
pub struct Standing {
    /// The state of the key.
    pub entry: Option<Entry>,
    /// The time by the clock of the store.
    pub there: Timestamp,
    /// The same moment by the clock that deadlines are of.
    pub here: Timestamp,
}

/// What is expected of the first waiters of a line.
#[derive(Debug)]
pub(super) struct Projection {
    /// Of each, in order.
    expected: VecDeque<Expected>,
    /// The state of the key behind the last of them, and when that passes by the clock of the store.
    entry: Option<Entry>,
    at: Timestamp,
    /// What it takes up, as it was counted last.
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It passes then, by the clock of the store.
    Passes(Timestamp),
    /// It misses its deadline and goes without, or may do so.
    Misses,
}

impl<K: Hash + Eq, W: AsRef<Request>> Lines<K, W> {
    /// A lower bound on when `request` would pass, by the clock of the store, if those before it went
    /// first, each as soon as it can, and nothing else came; `None`: never. `number`: its place in the
    /// line, if it stands there already; else it is about to join. It is exact where all before it
    /// have been worked out.
    pub fn projected<Q: Hash + Eq + ?Sized>(
        &mut self,
        key: &Q,
        number: Option<u64>,
        request: &Request,
        mut standing: Standing,
    ) -> Option<Timestamp>
    where
        K: Borrow<Q>,
    {
        let line = self.lines.get_mut(key).filter(|line| !line.waiters.is_empty());
        let Some(line) = line else { return passes(&mut standing.entry, standing.there, request) };
        let index = number.map_or(line.waiters.len(), |number| {
            line.waiters.partition_point(|(it, _)| *it < number)
        });
        if index == 0 {
            return passes(&mut standing.entry, standing.there, request);
        }
        let mut projection = match line.projection.take() {
            Some(kept) if kept.holds(line, &mut standing) => kept,
            _ => Projection::new(standing.entry.clone(), standing.there),
        };
        self.projected -= projection.bytes;
        projection.advance(line, index, &standing);
        let answer = match projection.expected.get(index) {
            Some(Expected::Passes(at)) => Some((*at).max(standing.there)),
            // What is behind the last that was worked out is too late a state for it.
            Some(Expected::Misses) => passes(&mut standing.entry, standing.there, request),
            None => passes(&mut projection.entry, projection.at.max(standing.there), request),
        };
        projection.bytes = projection.size();
        if self.projected + projection.bytes <= MAX_PROJECTED {
            self.projected += projection.bytes;
            line.projection = Some(projection);
        }
        answer
    }
}

impl<K: Hash + Eq, W> Lines<K, W> {
    /// Something that is not in the line was taken from the key, or given back.
    pub fn changed<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(line) = self.lines.get_mut(key) {
            line.forget_projection(&mut self.projected);
        }
    }
}

impl Projection {
    const fn new(entry: Option<Entry>, at: Timestamp) -> Self {
        Self { expected: VecDeque::new(), entry, at, bytes: 0 }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The waiter at `index` is no longer in line, since it `passed` or since it left. Whether what is
    /// expected of the others still holds.
    pub(super) fn removed(&mut self, index: usize, passed: bool) -> bool {
        match self.expected.remove(index) {
            Some(Expected::Passes(_)) => passed && index == 0,
            Some(Expected::Misses) => !passed,
            None => true,
        }
    }

    /// Whether the first that is expected to pass would do so then, or little later.
    fn holds<W: AsRef<Request>>(&self, line: &Line<W>, standing: &mut Standing) -> bool {
        let passing =
            self.expected.iter().zip(&line.waiters).find_map(|(expected, (_, waiter))| {
                match expected {
                    Expected::Passes(at) => Some((*at, waiter.as_ref())),
                    Expected::Misses => None,
                }
            });
        let Some((at, first)) = passing else { return false };
        passes(&mut standing.entry, standing.there, first)
            .is_some_and(|fresh| fresh >= at && fresh <= at + TOLERANCE)
    }

    /// Works out some more of the waiters before `index`.
    fn advance<W: AsRef<Request>>(&mut self, line: &Line<W>, index: usize, standing: &Standing) {
        let known = self.expected.len();
        for (_, waiter) in line.waiters.range(known.min(index)..index).take(MAX_STEPS) {
            let request = waiter.as_ref();
            let at = passes(&mut self.entry, self.at.max(standing.there), request);
            // One that passes just in time may miss it, and then those behind it are earlier.
            let at = at.filter(|at| *at + TOLERANCE <= standing.deadline(request));
            self.expected.push_back(at.map_or(Expected::Misses, Expected::Passes));
            if let Some(at) = at {
                self.at = at;
                // It passes: it was asked.
                let take = Operation::Take(request.cost);
                let _ = apply(&request.policy, &mut self.entry, at, take);
            }
        }
    }

    fn size(&self) -> usize {
        let entry: usize = self.entry.iter().flat_map(Entry::allocations).sum();
        size_of::<Self>() + entry + self.expected.capacity() * size_of::<Expected>()
    }
}

impl Standing {
    /// The deadline of a request by the clock of the store.
    fn deadline(&self, request: &Request) -> Timestamp {
        let left = request.deadline.as_micros().saturating_sub(self.here.as_micros());
        self.there + Duration::from_micros(left)
    }
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
    use super::*;

    type OneLine = Lines<u8, Request>;

    fn request(policy: &str, cost: u32, deadline: u64) -> Request {
        Request { policy: policy.parse().unwrap(), cost, deadline: at(deadline) }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    /// When the last of `requests` would pass if they came at `now`, one after the other.
    fn when(requests: &[Request], now: u64) -> Option<u64> {
        let (last, ahead) = requests.split_last()?;
        let mut lines = OneLine::default();
        for request in ahead {
            // Each arrives, so that what is kept is used.
            let _ = lines.projected(&0, None, request, standing(None, now));
            lines.join(0, request.clone());
        }
        let at = lines.projected(&0, None, last, standing(None, now));
        at.map(Timestamp::as_micros)
    }

    fn standing(entry: Option<Entry>, now: u64) -> Standing {
        Standing { entry, there: at(now), here: at(now) }
    }

    #[test]
    fn projected_ahead_go_first_unless_they_come_too_late() {
        const LATE: u64 = u64::MAX >> 12;
        let (ample, scant) = (request("gcra:1/1s", 1, LATE), request("gcra:1/1s", 1, 500_000));
        let never = request("gcra:1/1s", 2, 0);
        assert_eq!(when(&[], 0), None);
        assert_eq!(when(std::slice::from_ref(&ample), 0), Some(0));
        assert_eq!(when(&[ample.clone(), ample.clone()], 0), Some(1_000_000));
        assert_eq!(when(&[ample.clone(), ample.clone(), ample.clone()], 0), Some(2_000_000));
        assert_eq!(when(&[ample.clone(), scant, ample.clone()], 0), Some(1_000_000));
        assert_eq!(when(&[ample.clone(), never.clone()], 0), None);
        assert_eq!(when(&[never, ample.clone()], 0), Some(0));
        assert_eq!(when(&vec![ample; 999], 5), Some(998_000_005));
    }

    #[test]
    fn projected_is_a_lower_bound_after_every_change() {
        let policy = "sliding-log:3/1s,gcra:1/100ms:burst=2";
        let mut random = 7_u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (random >> 33) % most
        };
        let (mut lines, mut entry, mut now) = (OneLine::default(), None, 0);
        let mut standing_in_line: VecDeque<(u64, Request)> = VecDeque::new();
        let mut exact = 0;
        for _ in 0..4000 {
            now += below(60_000);
            // Those whose deadline has come have left.
            standing_in_line.retain(|(number, ask)| {
                let stays = ask.deadline >= at(now);
                if !stays {
                    lines.leave(&0, *number);
                }
                stays
            });
            let ask = request(policy, 1, now + below(20_000_000));
            match below(60) {
                // One that does not wait takes, and one gives back.
                operation @ ..2 => {
                    let takes = operation == 0;
                    let operation = if takes { Operation::Take(1) } else { Operation::Refund(2) };
                    let _ = apply(&ask.policy, &mut entry, at(now), operation);
                    lines.changed(&0);
                }
                2 if !standing_in_line.is_empty() => {
                    let index = usize::try_from(below(standing_in_line.len() as u64)).unwrap();
                    let (number, _) = standing_in_line.remove(index).unwrap();
                    lines.leave(&0, number);
                }
                3..24 => {
                    if let Some((number, head)) = standing_in_line.front()
                        && apply(&head.policy, &mut entry, at(now), Operation::Take(1))
                            .unwrap()
                            .allowed()
                    {
                        lines.step_out(&0, *number);
                        lines.leave(&0, *number);
                        standing_in_line.pop_front();
                    }
                }
                _ => {
                    let told = lines.projected(&0, None, &ask, standing(entry.clone(), now));
                    // From the head of the line, one after the other.
                    let (mut whole, mut then) = (entry.clone(), at(now));
                    for (_, ahead) in &standing_in_line {
                        let passes = passes(&mut whole, then, ahead);
                        if let Some(when) = passes.filter(|when| *when <= ahead.deadline) {
                            then = when;
                            let _ = apply(&ahead.policy, &mut whole, then, Operation::Take(1));
                        }
                    }
                    let expected = passes(&mut whole, then, &ask);
                    assert!(told <= expected, "{told:?} {expected:?}");
                    exact += usize::from(told == expected);
                    if standing_in_line.len() < 40 {
                        standing_in_line.push_back((lines.join(0, ask.clone()), ask));
                    }
                }
            }
        }
        assert!(exact > 300, "{exact} of 4000 were exact");
    }

    #[test]
    fn projections_take_bounded_memory_and_leave_none() {
        let mut lines = Lines::<usize, Request>::default();
        let ask = request("sliding-log:9000/1h", 1, u64::MAX >> 12);
        let mut entry = None;
        for micros in 0..9000 {
            let _ = apply(&ask.policy, &mut entry, at(micros), Operation::Take(1));
        }
        let mut numbers = Vec::new();
        for key in 0..300 {
            for _ in 0..2 {
                let _ = lines.projected(&key, None, &ask, standing(entry.clone(), 9000));
                numbers.push((key, lines.join(key, ask.clone())));
            }
        }
        assert!((1..=MAX_PROJECTED).contains(&lines.projected), "{}", lines.projected);
        for (key, number) in numbers {
            lines.leave(&key, number);
        }
        assert_eq!(lines.projected, 0);
    }
}
