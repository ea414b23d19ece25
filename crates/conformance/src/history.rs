//! Random histories of one key: every operation, policy changes, and times at every boundary.
//!
//! A seed determines its history, and a failure prints both, so that it can be repeated.

use std::{fmt, time::Duration};

use sluicegate_core::{Operation, Policy, Timestamp};

use crate::{CoreSubject, Invocation, Subject, compare};

/// The shape of random histories.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Steps in a history.
    pub steps: usize,
    /// Whether the policy changes while the key is in use.
    pub changes: bool,
    /// Whether the clock may step back: by less than a period and by more.
    pub steps_back: bool,
    /// Whether operations may be `reserve`.
    pub reserve: bool,
    /// Whether zones other than UTC may appear.
    pub zones: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { steps: 40, changes: true, steps_back: true, reserve: true, zones: true }
    }
}

/// One invocation.
#[derive(Clone, Debug)]
pub struct Step {
    /// The time.
    pub now: Timestamp,
    /// The policy.
    pub policy: Policy,
    /// The operation.
    pub operation: Operation<'static>,
}

impl Step {
    /// This step as an invocation on `key`.
    #[must_use]
    pub fn of<'a>(&'a self, key: &'a [u8]) -> Invocation<'a> {
        let Self { now, policy, operation } = self;
        Invocation { key, policy, now: *now, operation: *operation }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {:?} under {}", self.now, self.operation, self.policy)
    }
}

/// Operations on one key, in order.
#[derive(Clone, Debug)]
pub struct History(pub Vec<Step>);

impl History {
    /// The history for `seed`.
    #[must_use]
    pub fn random(seed: u64, shape: Shape) -> Self {
        let mut draw = SeededRng::new(seed);
        let mut policies: Vec<Policy> = Vec::new();
        for _ in 0..if shape.changes { 1 + draw.below(3) } else { 1 } {
            policies.push(draw.policy(shape));
        }
        let mut now = 1_700_000_040_000_000 + draw.below(2) * draw.below(60_000_000);
        if draw.one_in(8) {
            // Where the clock never steps back, it would not move after the last time.
            let last = if shape.steps_back { 1 << 52 } else { (1 << 51) - 1 };
            now = draw.pick(&[0, 1_000_000, 951_782_400_000_000, (1 << 51) - 1, last]);
        }
        let mut policy = policies[0].clone();
        let steps = (0..shape.steps).map(|_| {
            if draw.one_in(6) {
                policy = draw.pick(&policies);
            }
            now = draw.time(now, shape);
            let operation = draw.operation(&policy, shape);
            let now = Timestamp::saturating_from_micros(now);
            Step { now, policy: policy.clone(), operation }
        });
        Self(steps.collect())
    }
}

/// Runs `count` histories from `seed` on, each on its own key, and compares every answer with that
/// of the core.
///
/// # Panics
/// At the first answer that differs, with the history so far.
pub fn check_histories(subject: &mut impl Subject, seed: u64, count: u64, shape: Shape) {
    let mut core = CoreSubject::default();
    for seed in seed..seed + count {
        check_history(&mut core, subject, seed, shape);
    }
}

fn check_history(core: &mut CoreSubject, subject: &mut impl Subject, seed: u64, shape: Shape) {
    let history = History::random(seed, shape);
    let key = format!("history:{seed}").into_bytes();
    for (index, step) in history.0.iter().enumerate() {
        let invocation = step.of(&key);
        let expected = core.apply(invocation);
        let found = subject.apply(invocation);
        if let Err(difference) = compare(&expected, &found) {
            let steps: Vec<_> = history.0[..=index].iter().map(Step::to_string).collect();
            panic!("history {seed}: {difference}, after\n{}", steps.join("\n"));
        }
    }
}

/// Random numbers from a seed (SplitMix64, after Steele, Lea and Flood, 2014).
pub(crate) struct SeededRng(u64);

impl SeededRng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let index = usize::try_from(self.below(from.len() as u64)).unwrap_or(0);
        from[index].clone()
    }

    fn units(&mut self) -> u64 {
        if self.one_in(20) {
            return self.pick(&[1_000_003, 4_294_967_295, 65_536]);
        }
        self.pick(&[1, 1, 2, 3, 4, 5, 7, 10, 12, 30])
    }

    fn period(&mut self) -> &'static str {
        self.pick(&["1ms", "7ms", "250ms", "999983us", "1s", "1s", "3s", "1m", "1m", "1h", "1d"])
    }

    pub(crate) fn policy(&mut self, shape: Shape) -> Policy {
        loop {
            let count = if self.one_in(3) { 2 + self.below(3) } else { 1 };
            let limits: Vec<_> = (0..count).map(|_| self.limit(shape)).collect();
            // A bucket that drains too slowly is invalid: try again.
            if let Ok(policy) = limits.join(",").parse() {
                return policy;
            }
        }
    }

    fn limit(&mut self, shape: Shape) -> String {
        let (n, period) = (self.units(), self.period());
        let burst = if self.one_in(2) { format!(":burst={}", self.units()) } else { String::new() };
        let borrow = if self.one_in(5) { ":borrow" } else { "" };
        let count = if self.one_in(3) { ":count=all" } else { "" };
        // `reserve` needs policies of one algorithm; therefore these are frequent.
        let kinds = if shape.reserve && self.one_in(2) { 4 } else { 12 };
        match self.below(kinds) {
            0 => format!("gcra:{n}/{period}{burst}{borrow}"),
            1 => format!("token-bucket:{n}/{period}{burst}{borrow}"),
            2 => format!("leaky-bucket:{n}/{period}{burst}{borrow}"),
            3 => format!("leaky-queue:{n}/{period}{burst}"),
            4 | 5 => format!("token-bucket:{n}/{period}{burst}{borrow}:refill=interval"),
            6 => format!("fixed-window:{n}/{period}{count}"),
            7 => format!("fixed-window:{n}/{period}:align=clock{count}"),
            8 => {
                let unit = self.pick(&["day", "week", "month", "year"]);
                let zones = ["UTC", "Asia/Shanghai", "America/New_York", "Europe/Berlin"];
                let zone = if shape.zones { self.pick(&zones) } else { "UTC" };
                format!("fixed-window:{n}/{unit}{count}:tz={zone}")
            }
            9 | 10 => {
                let keep =
                    if self.one_in(3) { format!(":keep={}", self.period()) } else { String::new() };
                let max = if !keep.is_empty() && self.one_in(2) {
                    format!(":keep-max={}", 1 + self.below(40))
                } else {
                    String::new()
                };
                format!("sliding-log:{n}/{period}{count}{keep}{max}")
            }
            _ => format!("sliding-counter:{n}/{period}{count}"),
        }
    }

    pub(crate) fn time(&mut self, now: u64, shape: Shape) -> u64 {
        let spans = [
            1_000,
            7_000,
            250_000,
            999_983,
            1_000_000,
            3_000_000,
            60_000_000,
            3_600_000_000,
            86_400_000_000,
        ];
        let span = self.pick(&spans);
        let step = match self.below(14) {
            0..=3 => 0,
            4 => 1,
            5 => span,
            6 => span - 1,
            7 => span + 1,
            8 => span / 3,
            9 => span / 2,
            // Just before, at, or just after the next multiple of the span.
            10 => (span - now % span + self.below(3)).saturating_sub(1),
            11 => self.below(2 * span),
            12 => self.below(1_000_000),
            _ => self.below(20_000),
        };
        if shape.steps_back && self.one_in(12) {
            // Stragglers, by less than any period; and steps by about a period, or several.
            let (little, part) = (1 + self.below(999), self.below(span));
            now.saturating_sub(self.pick(&[little, part, span - 1, span, 3 * span, step]))
        } else {
            now.saturating_add(step).min(Timestamp::MAX.as_micros())
        }
    }

    pub(crate) fn operation(&mut self, policy: &Policy, shape: Shape) -> Operation<'static> {
        let limits: Vec<_> = policy.limits().iter().map(|limit| limit.capacity()).collect();
        let capacity = self.pick(&limits);
        let cost = match self.below(16) {
            0 => 0,
            1..=7 => 1,
            8 | 9 => 2,
            10 => 3,
            11 => capacity,
            12 => capacity.saturating_add(1),
            13 => capacity / 2,
            14 => u32::try_from(self.below(40)).unwrap_or(0),
            _ => self.pick(&[1, 1, 1, 1_000_000, u32::MAX]),
        };
        match self.below(16) {
            0..=8 => Operation::Take(cost),
            9 | 10 => Operation::Peek(cost),
            11 => Operation::Charge(cost),
            12 | 13 => Operation::Refund(cost),
            14 if shape.reserve => {
                let wait = self.pick(&[0, 1, 100_000, 1_000_000, 60_000_000, u64::MAX]);
                Operation::Reserve { cost, max_wait: Duration::from_micros(wait) }
            }
            15 if self.one_in(3) => Operation::Reset,
            _ => Operation::Take(cost),
        }
    }
}
