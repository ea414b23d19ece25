//! Streams that hold units and settle their usage: some are killed, some settle late, and operations arrive twice.

use std::{collections::HashSet, time::Duration};

use sluicegate_core::{Operation, Policy, Retry, Timestamp};

use crate::{Invocation, Subject, history::SeededRng};

const BEGIN: u64 = 1_700_000_040_000_000;
const SECOND: u64 = 1_000_000;

/// A policy, and its rates, which give nothing back within a check.
const POLICIES: [(&str, &str); 3] = [
    ("concurrency:65536/1m,fixed-window:4294967295/366d", "fixed-window:4294967295/366d"),
    ("fixed-window:4294967295/366d", "fixed-window:4294967295/366d"),
    ("sliding-counter:4294967295/366d,concurrency:65536/1m", "sliding-counter:4294967295/366d"),
];

/// The results of the streams of [`check_hold_streams`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamCounts {
    /// Operations that arrived.
    pub arrivals: u64,
    /// Streams that were never allowed.
    pub denied: u64,
    /// Streams that were settled in time.
    pub settled: u64,
    /// Streams whose hold expired: killed ones, and ones that settled late.
    pub expired: u64,
    /// Units that settled streams used.
    pub used: u64,
    /// Units that expired streams held.
    pub lost: u64,
}

struct Stream {
    key: usize,
    cost: u32,
    used: Option<u32>,
    ttl: Duration,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Open { expires: u64 },
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Hold,
    Renew,
    Settle,
}

/// Checks that the units charged are those used by settled streams and those held by expired ones, to the unit, at 20
/// times and at the end.
///
/// # Panics
/// If a sum differs, or an operation finds a hold open that is not, or the reverse.
pub fn check_hold_streams(subject: &mut impl Subject, count: usize) -> StreamCounts {
    let mut draw = SeededRng::new(100_000);
    let policies = POLICIES
        .map(|(policy, rates)| [policy, rates].map(|text| text.parse::<Policy>().expect(text)));
    let mut arrivals = Vec::new();
    let mut streams: Vec<_> =
        (0..count).map(|number| stream(&mut draw, number, &mut arrivals)).collect();
    arrivals.sort_unstable();
    let mut counts = StreamCounts::default();
    // Streams that may be open, and charged units, by key.
    let mut open: HashSet<usize> = HashSet::new();
    let mut charged = [0_u64; POLICIES.len()];
    let check_every = arrivals.len() / 20 + 1;
    for (index, &(at, _, number, kind)) in arrivals.iter().enumerate() {
        let now = Timestamp::saturating_from_micros(BEGIN + at);
        let stream = &mut streams[number];
        if let State::Open { expires } = stream.state
            && expires <= at
        {
            expire(stream, &mut counts, &mut charged);
            open.remove(&number);
        }
        let id = number.to_string().into_bytes();
        let operation = match kind {
            Kind::Hold => Operation::Hold { id: &id, cost: stream.cost, ttl: Some(stream.ttl) },
            Kind::Renew => Operation::Renew { id: &id, ttl: Some(stream.ttl) },
            Kind::Settle => Operation::Settle { id: &id, used: stream.used },
        };
        let key = name(stream.key);
        let policy = &policies[stream.key][0];
        let invocation = Invocation { key: &key, policy, now, operation };
        let decision = subject.apply(invocation).expect("a valid operation");
        let expires = at + sluicegate_core::as_micros(stream.ttl);
        let is_open = matches!(stream.state, State::Open { .. });
        match kind {
            // A copy of a hold that was denied may be allowed.
            Kind::Hold if is_open => assert!(decision.allowed(), "stream {number} at {at}"),
            Kind::Hold if decision.allowed() => {
                stream.state = State::Open { expires };
                open.insert(number);
            }
            Kind::Hold => {}
            Kind::Renew | Kind::Settle if !is_open => {
                assert_eq!(decision.retry(), Some(Retry::Never), "stream {number} at {at}");
            }
            Kind::Renew => {
                assert!(decision.allowed(), "stream {number} at {at}");
                stream.state = State::Open { expires };
            }
            Kind::Settle => {
                assert!(decision.allowed(), "stream {number} at {at}");
                stream.state = State::Over;
                open.remove(&number);
                let used = u64::from(stream.used.unwrap_or(stream.cost));
                charged[stream.key] += used;
                counts.used += used;
                counts.settled += 1;
            }
        }
        counts.arrivals += 1;
        if index % check_every == 0 {
            let mut expected = charged;
            for number in &open {
                expected[streams[*number].key] += u64::from(streams[*number].cost);
            }
            check_sums(subject, &policies, now, expected);
        }
    }
    for stream in &mut streams {
        match stream.state {
            State::New => counts.denied += 1,
            State::Open { .. } => expire(stream, &mut counts, &mut charged),
            State::Over => {}
        }
    }
    let end = arrivals.last().map_or(0, |last| last.0) + 120 * SECOND;
    check_sums(subject, &policies, Timestamp::saturating_from_micros(BEGIN + end), charged);
    assert_eq!(charged.iter().sum::<u64>(), counts.used + counts.lost);
    counts
}

/// A stream, and the times at which its operations arrive.
fn stream(
    draw: &mut SeededRng,
    number: usize,
    arrivals: &mut Vec<(u64, Kind, usize, Kind)>,
) -> Stream {
    let ttl = SECOND + draw.below(15 * SECOND);
    let begin = number as u64 * SECOND / 10;
    let mut arrive = |draw: &mut SeededRng, at: u64, kind: Kind| {
        // Most arrive once, some up to three times.
        let copies = if draw.one_in(3) { draw.below(3) } else { 0 };
        for _ in 0..copies {
            arrivals.push((at + draw.below(SECOND / 2), kind, number, kind));
        }
        arrivals.push((at, kind, number, kind));
    };
    arrive(draw, begin, Kind::Hold);
    let mut end = begin + ttl / 2 + draw.below(ttl / 2);
    for _ in 0..draw.below(3) {
        arrive(draw, end - 1, Kind::Renew);
        end += draw.below(ttl);
    }
    // One in seven is killed, and one in seven settles late.
    match draw.below(7) {
        0 => {}
        1 => arrive(draw, end + 2 * ttl, Kind::Settle),
        _ => arrive(draw, end, Kind::Settle),
    }
    let units = |count: u64| u32::try_from(count).expect("few units");
    let used = if draw.one_in(4) { None } else { Some(units(draw.below(5000))) };
    let cost = units(1 + draw.below(4000));
    Stream {
        key: number % POLICIES.len(),
        cost,
        used,
        ttl: Duration::from_micros(ttl),
        state: State::New,
    }
}

/// The hold of a stream expires, and is charged in full.
fn expire(stream: &mut Stream, counts: &mut StreamCounts, charged: &mut [u64; POLICIES.len()]) {
    stream.state = State::Over;
    charged[stream.key] += u64::from(stream.cost);
    counts.lost += u64::from(stream.cost);
    counts.expired += 1;
}

fn name(key: usize) -> Vec<u8> {
    format!("streams:{key}").into_bytes()
}

/// Checks the held and charged units of each key.
fn check_sums(
    subject: &mut impl Subject,
    policies: &[[Policy; 2]; POLICIES.len()],
    now: Timestamp,
    expected: [u64; POLICIES.len()],
) {
    for (key, [_, rates]) in policies.iter().enumerate() {
        let name = name(key);
        let operation = Operation::Peek(0);
        let peek = Invocation { key: &name, policy: rates, now, operation };
        let found = subject.apply(peek).expect("a peek");
        assert_eq!(u64::from(found.limit - found.remaining), expected[key], "key {key} at {now}");
    }
}
