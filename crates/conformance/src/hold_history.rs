//! Random histories of one key with holds: few ids, short lifetimes, and times at every expiry.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Timestamp};

use crate::{CoreSubject, History, Shape, Step, Subject, compare, history::SeededRng};

/// The ids of all histories: each uses the first few or all of them.
const IDS: [&[u8]; 12] = [
    b"a",
    b"b",
    b"\x00\xff\r\n",
    b"stream:2",
    &[b'z'; 64],
    b"c",
    b"d",
    b"e",
    b"f",
    b"g",
    b"h",
    b"i",
];

impl History {
    /// The history with holds for `seed`.
    #[must_use]
    pub fn with_holds(seed: u64, shape: Shape) -> Self {
        let draw = &mut SeededRng::new(seed);
        let mut times = HoldTimes::new(draw);
        let count = if shape.changes { 1 + draw.below(3) } else { 1 };
        let policies: Vec<Policy> = (0..count).map(|_| hold_policy(draw, shape)).collect();
        let mut policy = policies[0].clone();
        let steps = (0..shape.steps).map(|_| {
            if draw.one_in(4) {
                policy = draw.pick(&policies);
            }
            let now = times.next(draw, shape);
            let operation = times.operation(draw, &policy, shape);
            Step { now, policy: policy.clone(), operation }
        });
        Self(steps.collect())
    }
}

/// Runs `count` histories with holds from `seed` on, each on its own key, and compares every answer with that of the
/// core.
///
/// # Panics
/// At the first answer that differs, with the fewest steps that show a difference.
pub fn check_hold_histories(subject: &mut impl Subject, seed: u64, count: u64, shape: Shape) {
    let mut core = CoreSubject::default();
    for seed in seed..seed + count {
        let mut steps = History::with_holds(seed, shape).0;
        let mut attempts = 0;
        let mut difference = |steps: &[Step]| {
            attempts += 1;
            let key = format!("holds:{seed}:{attempts}").into_bytes();
            first_difference(&mut core, subject, &key, steps)
        };
        let Some((last, mut fault)) = difference(&steps) else { continue };
        steps.truncate(last + 1);
        let mut index = steps.len();
        while index > 0 {
            index -= 1;
            let mut fewer = steps.clone();
            fewer.remove(index);
            if let Some((last, other)) = difference(&fewer) {
                fewer.truncate(last + 1);
                index = index.min(fewer.len());
                (steps, fault) = (fewer, other);
            }
        }
        let steps: Vec<_> = steps.iter().map(Step::to_string).collect();
        panic!("history {seed}: {fault}, after\n{}", steps.join("\n"));
    }
}

/// Index and description of the first answer that differs.
fn first_difference(
    core: &mut CoreSubject,
    subject: &mut impl Subject,
    key: &[u8],
    steps: &[Step],
) -> Option<(usize, String)> {
    steps.iter().enumerate().find_map(|(index, step)| {
        let (expected, found) = (core.apply(step.of(key)), subject.apply(step.of(key)));
        compare(&expected, &found).err().map(|fault| (index, fault))
    })
}

/// The time of a history, the ids of its holds, and the times at which they expire.
pub(crate) struct HoldTimes {
    now: u64,
    expiries: Vec<u64>,
    ids: &'static [&'static [u8]],
}

/// Periods, and lifetimes about as long.
const SPANS: [u64; 6] = [1_000, 7_000, 50_000, 1_000_000, 3_000_000, 60_000_000];

impl HoldTimes {
    pub(crate) fn new(draw: &mut SeededRng) -> Self {
        let start = if draw.one_in(12) { draw.pick(&[0, 1 << 52]) } else { 1_700_000_040_000_000 };
        let now = start + draw.below(2) * draw.below(60_000_000);
        let now = now.min(Timestamp::MAX.as_micros());
        Self { now, expiries: Vec::new(), ids: &IDS[..draw.pick(&[2, 5, 12])] }
    }

    /// One of the ids.
    pub(crate) fn id(&self, draw: &mut SeededRng) -> &'static [u8] {
        draw.pick(self.ids)
    }

    /// The time of the next step.
    pub(crate) fn next(&mut self, draw: &mut SeededRng, shape: Shape) -> Timestamp {
        let span = draw.pick(&SPANS);
        let now = match draw.below(12) {
            0..=3 => self.now,
            // Just before, at, or just after an expiry.
            4..=6 if !self.expiries.is_empty() => {
                let expiry = draw.pick(&self.expiries);
                (expiry + draw.below(3)).saturating_sub(1).max(self.now)
            }
            7 => self.now + span - self.now % span,
            8 => self.now + span - 1 + draw.below(3),
            9 => self.now + draw.below(2 * span),
            10 => draw.time(self.now, shape),
            _ => self.now + draw.below(2_000),
        };
        let back = match shape.steps_back && draw.one_in(12) {
            true => {
                let (little, part) = (1 + draw.below(999), draw.below(span));
                draw.pick(&[little, part, span, 3 * span])
            }
            false => 0,
        };
        self.now = now.saturating_sub(back).min(Timestamp::MAX.as_micros());
        Timestamp::saturating_from_micros(self.now)
    }

    /// A lifetime: often that of another hold's expiry, sometimes outside the domain.
    pub(crate) fn ttl(&mut self, draw: &mut SeededRng) -> Option<Duration> {
        let ttl = match draw.below(20) {
            0..=3 => return None,
            4..=6 if !self.expiries.is_empty() => {
                draw.pick(&self.expiries).saturating_sub(self.now)
            }
            7 => draw.pick(&[0, 999, 86_400_000_000, 86_400_000_001]),
            8 => draw.pick(&SPANS) + 1,
            9 => draw.pick(&SPANS) / 2,
            10 => 1_000 + draw.below(100_000),
            _ => draw.pick(&SPANS),
        };
        self.expiries.push(self.now + ttl);
        Some(Duration::from_micros(ttl))
    }

    pub(crate) fn operation(
        &mut self,
        draw: &mut SeededRng,
        policy: &Policy,
        shape: Shape,
    ) -> Operation<'static> {
        let id = self.id(draw);
        let cost = hold_cost(draw, policy);
        match draw.below(20) {
            0..=7 => Operation::Hold { id, cost, ttl: self.ttl(draw) },
            8..=10 => Operation::Settle { id, used: draw.pick(&[None, None, Some(0), Some(cost)]) },
            11 | 12 => Operation::Renew { id, ttl: self.ttl(draw) },
            13 | 14 => Operation::Peek(cost),
            15..=17 if !policy.counts_holds() => Operation::Take(cost),
            _ => draw.operation(policy, shape),
        }
    }
}

/// A policy of few units and short periods, often with `concurrency`.
pub(crate) fn hold_policy(draw: &mut SeededRng, shape: Shape) -> Policy {
    loop {
        let count = if draw.one_in(3) { 2 + draw.below(2) } else { 1 };
        let mut limits: Vec<String> = (0..count).map(|_| short_limit(draw, shape)).collect();
        if draw.one_in(4) {
            limits = vec![draw.policy(shape).to_string()];
        }
        let concurrency = concurrency(draw);
        match draw.below(8) {
            0 => limits = vec![concurrency],
            1 => limits = vec![concurrency, self::concurrency(draw)],
            2 => limits.push(concurrency),
            3 => limits.insert(0, concurrency),
            _ => {}
        }
        // A bucket that drains too slowly is invalid: try again.
        if let Ok(policy) = limits.join(",").parse() {
            return policy;
        }
    }
}

fn concurrency(draw: &mut SeededRng) -> String {
    let n = draw.pick(&[1, 2, 3, 4, 5, 8, 65_536]);
    format!("concurrency:{n}/{}", draw.pick(&["7ms", "50ms", "1s", "3s", "1m", "2d"]))
}

fn short_limit(draw: &mut SeededRng, shape: Shape) -> String {
    let n = 1 + draw.below(12);
    let period = draw.pick(&["1ms", "7ms", "50ms", "1s", "1s", "3s", "1m"]);
    let burst =
        if draw.one_in(2) { format!(":burst={}", 1 + draw.below(8)) } else { String::new() };
    let borrow = if draw.one_in(4) { ":borrow" } else { "" };
    let count = if draw.one_in(3) { ":count=all" } else { "" };
    let kinds = if shape.reserve && draw.one_in(3) { 2 } else { 10 };
    match draw.below(kinds) {
        0 => format!("gcra:{n}/{period}{burst}{borrow}"),
        1 if draw.one_in(4) => format!("leaky-queue:{n}/{period}{burst}"),
        1 => format!("token-bucket:{n}/{period}{burst}{borrow}"),
        2 | 3 => format!("token-bucket:{n}/{period}{burst}{borrow}:refill=interval"),
        4 => format!("fixed-window:{n}/{period}{count}"),
        5 => format!("fixed-window:{n}/{period}:align=clock{count}"),
        6 => format!("sliding-log:{n}/{period}{count}"),
        7 => format!("sliding-log:{n}/{period}{count}:keep=2m:keep-max={}", 1 + draw.below(20)),
        _ => format!("sliding-counter:{n}/{period}{count}"),
    }
}

/// Units to hold, to take or that were used.
pub(crate) fn hold_cost(draw: &mut SeededRng, policy: &Policy) -> u32 {
    let capacities: Vec<_> = policy.limits().iter().map(|limit| limit.capacity()).collect();
    let capacity = draw.pick(&capacities);
    match draw.below(16) {
        0 => 0,
        1..=7 => 1,
        8 | 9 => 2,
        10 => 3,
        11 => capacity,
        12 => capacity.saturating_add(1),
        13 => capacity / 2,
        14 => u32::try_from(draw.below(20)).unwrap_or(0),
        _ => draw.pick(&[1, 1, 4, 5, 1_000_000, u32::MAX]),
    }
}
