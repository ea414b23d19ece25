//! Operations on holds that arrive several times.
//!
//! A client that misses a reply sends the operation again until it has one, and only then begins the next operation
//! on that hold. Therefore the copies of a hold arrive before the first copy of its settle; all other copies arrive
//! in any order.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Retry};

use crate::{
    Subject,
    history::SeededRng,
    hold_bounds::{SECOND, apply, in_use, units},
};

/// Policies, and their limits without `concurrency`. None gives back a whole unit within a check.
const POLICIES: [(&str, &str); 7] = [
    ("gcra:1000000/366d", "gcra:1000000/366d"),
    ("token-bucket:1000000/366d:refill=interval", "token-bucket:1000000/366d:refill=interval"),
    ("fixed-window:1000000/366d", "fixed-window:1000000/366d"),
    ("sliding-log:1000000/366d", "sliding-log:1000000/366d"),
    ("sliding-counter:1000000/366d", "sliding-counter:1000000/366d"),
    ("concurrency:5000/1h,gcra:1000000/366d", "gcra:1000000/366d"),
    (
        "gcra:1000000/366d,concurrency:5000/1h,sliding-log:1000000/366d",
        "gcra:1000000/366d,sliding-log:1000000/366d",
    ),
];

/// A stream: it holds, may renew, and settles, or is lost.
struct Stream {
    key: Vec<u8>,
    id: Vec<u8>,
    cost: u32,
    ttl: Duration,
    /// The units of the settle; `None` for a stream that is lost.
    settled: Option<Option<u32>>,
}

impl Stream {
    /// Units that are charged once its hold is over.
    fn charged(&self) -> u32 {
        self.settled.flatten().unwrap_or(self.cost)
    }

    fn operation(&self, kind: Kind) -> Operation<'_> {
        let (id, ttl) = (&*self.id, Some(self.ttl));
        match kind {
            Kind::Hold => Operation::Hold { id, cost: self.cost, ttl },
            Kind::Renew => Operation::Renew { id, ttl },
            Kind::Settle { .. } => Operation::Settle { id, used: self.settled.unwrap_or_default() },
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Hold,
    Renew,
    Settle { is_first: bool },
}

/// Checks that operations on holds that arrive one to three times charge the same as single ones: the units used, and
/// those held by lost streams. Returns the number of operations, and of their copies.
///
/// # Panics
/// If a sum differs, a copy of a hold is denied, or a settle has an unexpected answer.
pub fn check_repeated_holds(
    subject: &mut impl Subject,
    seeds: std::ops::Range<u64>,
) -> (usize, usize) {
    let (mut operations, mut copies) = (0, 0);
    for seed in seeds {
        let mut draw = SeededRng::new(seed);
        let (policy, rates) = draw.pick(&POLICIES);
        let [policy, rates] = [policy, rates].map(|text| text.parse::<Policy>().expect(text));
        let keys: Vec<_> =
            (0..3).map(|key| format!("repeated:{seed}:{key}").into_bytes()).collect();
        let streams: Vec<_> = (0..18).map(|number| stream(&mut draw, &keys, number)).collect();
        let mut arrivals = Vec::new();
        for (number, stream) in streams.iter().enumerate() {
            operations += arrive(&mut draw, number, stream, &mut arrivals);
        }
        arrivals.sort_by_key(|&(at, ..)| at);
        copies += arrivals.len();
        for &(at, number, kind) in &arrivals {
            let stream = &streams[number];
            let decision = apply(subject, &stream.key, &policy, at, stream.operation(kind));
            let decision = decision.unwrap_or_else(|error| panic!("{seed}: {kind:?}: {error}"));
            let expected = match kind {
                Kind::Hold => true,
                Kind::Settle { is_first } => is_first,
                // Whether a late copy finds the hold open changes no sum.
                Kind::Renew => decision.allowed(),
            };
            let id = stream.id.escape_ascii();
            assert_eq!(decision.allowed(), expected, "history {seed}, {kind:?} of {id} at {at}");
            if !expected {
                assert_eq!(
                    decision.retry(),
                    Some(Retry::Never),
                    "history {seed}, {kind:?} of {id}"
                );
            }
        }
        for key in &keys {
            let of_key = streams.iter().filter(|stream| stream.key == *key);
            let expected: u32 = of_key.map(Stream::charged).sum();
            let charged = in_use(subject, key, &rates, 20 * SECOND);
            assert_eq!(charged, expected, "history {seed} under {policy}: {}", key.escape_ascii());
        }
    }
    (operations, copies)
}

/// A stream of one of the keys. Ids are the same in all keys.
fn stream(draw: &mut SeededRng, keys: &[Vec<u8>], number: usize) -> Stream {
    let used = if draw.one_in(3) { None } else { Some(units(draw.below(40))) };
    Stream {
        key: keys[number % keys.len()].clone(),
        id: format!("s{}", number / keys.len()).into_bytes(),
        cost: 1 + units(draw.below(20)),
        ttl: Duration::from_micros(SECOND + draw.below(2 * SECOND)),
        settled: if draw.one_in(4) { None } else { Some(used) },
    }
}

/// Appends the times at which the copies of a stream's operations arrive. Returns the number of operations.
fn arrive(
    draw: &mut SeededRng,
    number: usize,
    stream: &Stream,
    arrivals: &mut Vec<(u64, usize, Kind)>,
) -> usize {
    let half = sluicegate_core::as_micros(stream.ttl) / 2;
    let begin = draw.below(5 * SECOND);
    let mut operations = 1;
    let mut repeat = |draw: &mut SeededRng, at: u64, within: u64, kind: Kind| {
        for _ in 0..draw.below(3) {
            arrivals.push((at + draw.below(within), number, kind));
        }
    };
    repeat(draw, begin, half, Kind::Hold);
    if draw.one_in(2) {
        let renewed = begin + draw.below(2 * half);
        repeat(draw, renewed, 2 * SECOND, Kind::Renew);
        arrivals.push((renewed, number, Kind::Renew));
        operations += 1;
    }
    // The first copy of each arrives at its time, before the others that arrive then.
    if stream.settled.is_some() {
        let settled = begin + half + draw.below(half);
        let mut late = Vec::new();
        for _ in 0..draw.below(3) {
            late.push((settled + draw.below(3 * SECOND), number, Kind::Settle { is_first: false }));
        }
        arrivals.push((settled, number, Kind::Settle { is_first: true }));
        arrivals.append(&mut late);
        operations += 1;
    }
    arrivals.insert(0, (begin, number, Kind::Hold));
    operations
}
