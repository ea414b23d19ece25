//! Plans from seeds. Each seed uses some kinds of policies, operations and faults, and leaves others out: a run in which
//! everything happens at once finds less.

use sluicegate_core::{GcraName, OnError, Policy, Share};

use crate::{
    plan::{Action, FaultKind, KeyPlan, Plan, PolicyPlan, Request, Step},
    random::Random,
};

/// How long steps are taken, in milliseconds.
const SPAN: u64 = 8_000;

/// What a seed uses.
struct Features {
    processes: usize,
    holds: bool,
    batches: bool,
    policy_changes: bool,
}

impl Plan {
    /// The plan of a seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let random = &Random::new(seed, "plan");
        let features = Features {
            processes: 1 + random.index(4),
            holds: random.chance(40),
            batches: random.chance(30),
            policy_changes: random.chance(30),
        };
        let denial_cache = *random.pick(&[0, 50, 1000, 1000]);
        let keys: Vec<_> = (0..=random.index(4)).map(|_| key(random, &features)).collect();
        let mut steps = requests(random, &features, &keys);
        if features.policy_changes {
            steps.extend(policy_changes(random, &features, &keys));
        }
        if random.chance(80) {
            steps.extend(faults(random, &features));
        }
        steps.sort_by_key(|step| step.at);
        Self { seed, processes: features.processes, denial_cache, keys, steps }
    }
}

fn key(random: &Random, features: &Features) -> KeyPlan {
    let policies = if features.policy_changes { 1 + random.index(3) } else { 1 };
    KeyPlan((0..policies).map(|_| policy(random)).collect())
}

fn policy(random: &Random) -> PolicyPlan {
    let limits = 1 + random.index(2) * random.index(2);
    let limits: Vec<_> = (0..limits).map(|_| limit(random)).collect();
    let policy = limits.join(",");
    let parsed: Option<Policy> = policy.parse().ok();
    let gcra = parsed.as_ref().and_then(Policy::as_gcra);
    let is_leased = gcra.is_some_and(|it| it.name() != GcraName::LeakyQueue && !it.borrow());
    let lease = if is_leased && random.chance(50) { *random.pick(&[4, 16, 64]) } else { 0 };
    let on_error = match random.below(5) {
        0 => OnError::Allow,
        1 => OnError::Fail,
        2 => OnError::Local(Share::ALL),
        3 => Share::of(1, 2).map_or(OnError::Deny, OnError::Local),
        _ => OnError::Deny,
    };
    PolicyPlan { policy, lease, on_error }
}

fn limit(random: &Random) -> String {
    let (count, burst) = (random.between(1, 30), random.between(1, 40));
    let period = random.pick(&["1s", "500ms", "3s", "7s"]);
    match random.below(12) {
        0 | 1 => format!("gcra:{count}/{period}:burst={burst}"),
        2 => format!("token-bucket:{count}/{period}:burst={burst}"),
        3 => format!("leaky-bucket:{count}/{period}:burst={burst}"),
        4 => format!("leaky-queue:{count}/{period}:burst={burst}"),
        5 => format!("fixed-window:{count}/{period}"),
        6 => format!("fixed-window:{count}/{period}:align=clock"),
        7 => format!("sliding-log:{count}/{period}"),
        8 => format!("sliding-counter:{count}/{period}"),
        9 => format!("token-bucket:{count}/{period}:refill=interval"),
        10 => format!("token-bucket:{count}/{period}:burst={burst}:borrow"),
        _ => format!("gcra:{count}/{period}"),
    }
}

/// The requests of each client.
fn requests(random: &Random, features: &Features, keys: &[KeyPlan]) -> Vec<Step> {
    let mut steps = Vec::new();
    let clients = 1 + random.index(8);
    for client in 0..clients {
        let process = client % features.processes;
        let gap = *random.pick(&[20, 60, 150, 400]);
        let mut at = random.below(gap);
        let mut open = Vec::new();
        while at < SPAN {
            let mut one = || {
                let key = random.index(keys.len());
                (key, request(random, &keys[key], key, features, &mut open))
            };
            let mut requests = vec![one()];
            while features.batches && !requests[0].1.is_on_hold() && random.chance(50) {
                let next = one();
                if !next.1.is_on_hold() {
                    requests.push(next);
                }
            }
            steps.push(Step { at, process, action: Action::Request(requests) });
            // Now and then several at once.
            at += if random.chance(10) { 0 } else { 1 + random.below(2 * gap) };
        }
    }
    steps
}

fn request(
    random: &Random,
    KeyPlan(policies): &KeyPlan,
    key: usize,
    features: &Features,
    open: &mut Vec<(usize, u64)>,
) -> Request {
    let cost = u32::try_from(*random.pick(&[1, 1, 1, 1, 2, 3, 7])).unwrap_or(1);
    let is_leased = policies.iter().any(|it| it.lease > 0);
    let has_queue = policies.iter().any(|it| it.policy.contains("leaky-queue"));
    if features.holds && !has_queue && !is_leased && random.chance(30) {
        if let Some(place) = open.iter().position(|it| it.0 == key)
            && random.chance(60)
        {
            let (_, id) = open[place];
            if random.chance(25) {
                return Request::Renew(id, random.between(20, 3000));
            }
            open.swap_remove(place);
            return Request::Settle(id, random.chance(50).then_some(cost));
        }
        let id = random.below(1 << 40);
        open.push((key, id));
        return Request::Hold(id, cost, random.between(20, 3000));
    }
    match random.below(20) {
        0 => Request::Peek(cost),
        1 => Request::Charge(cost),
        2 if !is_leased => Request::Refund(cost),
        3 if random.chance(20) => Request::Reset,
        4 if policies.iter().all(|it| can_reserve(&it.policy)) => {
            Request::Reserve(cost, random.below(2000))
        }
        _ => Request::Take(cost),
    }
}

fn can_reserve(policy: &str) -> bool {
    let families = ["gcra", "token-bucket", "leaky-bucket", "leaky-queue"];
    policy
        .split(',')
        .all(|limit| families.iter().any(|it| limit.starts_with(it)) && !limit.contains("interval"))
}

/// Each process changes its policies at other times.
fn policy_changes(random: &Random, features: &Features, keys: &[KeyPlan]) -> Vec<Step> {
    let change = |_| {
        let key = random.index(keys.len());
        let policy = random.index(keys[key].0.len());
        let (at, process) = (random.below(SPAN), random.index(features.processes));
        Step { at, process, action: Action::UsePolicy { key, policy } }
    };
    (0..random.between(1, 12)).map(change).collect()
}

/// Faults of the kinds that the seed has chosen. Their spans end some time before the run does.
fn faults(random: &Random, features: &Features) -> Vec<Step> {
    let kinds: Vec<_> = FaultKind::ALL.iter().filter(|_| random.chance(20)).collect();
    if kinds.is_empty() {
        return Vec::new();
    }
    let fault = |_| {
        let (kind, _) = **random.pick(&kinds);
        let span = *random.pick(&[5, 40, 150, 600, 2000]);
        let amount = match kind {
            FaultKind::SlowLink => *random.pick(&[3, 8, 20, 40]),
            FaultKind::StepClock => *random.pick(&[-5000, -200, 200, 5000, 3_600_000]),
            _ => *random.pick(&[0, 5, 100, 1000]),
        };
        let (at, process) = (random.between(200, SPAN - 1000), random.index(features.processes));
        Step { at, process, action: Action::Fault { kind, span, amount } }
    };
    (0..random.between(1, 8)).map(fault).collect()
}
