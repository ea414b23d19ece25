//! What the generators of all plans share. Each seed uses some kinds of policies, operations and faults, and leaves others
//! out: a run in which everything happens at once finds less.

use sluicegate_core::{OnError, PreparedPolicy, Share};

use crate::{
    plan::{KeyPlan, PolicyPlan, Request, Requests, Step},
    random::Random,
};

/// How long steps are taken, in milliseconds.
pub(crate) const SPAN: u64 = 8_000;

/// Periods of limits.
const PERIODS: [&str; 4] = ["1s", "500ms", "3s", "7s"];

/// The features that a seed uses.
pub(crate) struct Features {
    pub(crate) processes: usize,
    pub(crate) holds: bool,
    pub(crate) batches: bool,
    pub(crate) policy_changes: bool,
}

pub(crate) fn key(random: &Random, features: &Features) -> KeyPlan {
    let policies = if features.policy_changes { 1 + random.index(3) } else { 1 };
    let is_concurrency = features.holds && random.chance(20);
    let draw = || if is_concurrency { concurrency(random) } else { policy(random) };
    let mut all = vec![draw()];
    while all.len() < policies {
        let next = if random.chance(50) { of_equal_kind(random, &all[0]) } else { draw() };
        all.push(next);
    }
    KeyPlan(all)
}

/// A policy with limits of the same algorithms, most with another number of units, some with another period. Some have one
/// limit more.
fn of_equal_kind(
    random: &Random,
    PolicyPlan { policy, lease, on_error }: &PolicyPlan,
) -> PolicyPlan {
    let varied = |limit: &str| {
        let (name, rate) = limit.split_once(':')?;
        let (_, rest) = rate.split_once('/')?;
        let (mut period, options) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
        // The lifetimes of holds fit the periods of the first policy.
        if name != "concurrency" && period.ends_with('s') && random.chance(30) {
            period = PERIODS[random.index(PERIODS.len())];
        }
        Some(format!("{name}:{}/{period}{options}", random.between(1, 30)))
    };
    let mut limits: Vec<_> = policy.split(',').collect();
    if limits.len() == 1 && random.chance(20) {
        limits.push(limits[0]);
    }
    let limits: Option<Vec<_>> = limits.into_iter().map(varied).collect();
    let policy = limits.map_or_else(|| policy.clone(), |limits| limits.join(","));
    PolicyPlan { policy, lease: *lease, on_error: *on_error }
}

/// A policy with a limit on requests in flight, alone or beside another limit.
fn concurrency(random: &Random) -> PolicyPlan {
    let mut plan = policy(random);
    let limit =
        format!("concurrency:{}/{}", random.between(1, 9), random.pick(&["400ms", "3s", "30s"]));
    let is_alone = plan.policy.contains("leaky-queue") || random.chance(50);
    plan.policy = if is_alone { limit } else { format!("{limit},{}", plan.policy) };
    plan.lease = 0;
    plan
}

pub(crate) fn policy(random: &Random) -> PolicyPlan {
    let limits = 1 + random.index(2) * random.index(2);
    let limits: Vec<_> = (0..limits).map(|_| limit(random)).collect();
    let policy = limits.join(",");
    let parsed: Option<PreparedPolicy> = policy.parse().ok();
    let is_leased = parsed.is_some_and(|it| it.lease(2).is_ok());
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

pub(crate) fn limit(random: &Random) -> String {
    let (count, burst) = (random.between(1, 30), random.between(1, 40));
    let period = PERIODS[random.index(PERIODS.len())];
    let unit = random.pick(&["day", "week", "month:tz=Europe/Berlin", "day:tz=America/New_York"]);
    // Some windows record denials.
    let all = if count % 3 == 0 { ":count=all" } else { "" };
    // Some logs keep their events for a policy with a longer period.
    let keep = if burst % 3 == 0 { ":keep=10s" } else { "" };
    match random.below(13) {
        0 | 1 => format!("gcra:{count}/{period}:burst={burst}"),
        2 => format!("token-bucket:{count}/{period}:burst={burst}"),
        3 => format!("leaky-bucket:{count}/{period}:burst={burst}"),
        4 => format!("leaky-queue:{count}/{period}:burst={burst}"),
        5 => format!("fixed-window:{count}/{period}{all}"),
        6 => format!("fixed-window:{count}/{period}:align=clock{all}"),
        7 => format!("sliding-log:{count}/{period}{all}{keep}"),
        8 => format!("sliding-counter:{count}/{period}{all}"),
        9 => format!("token-bucket:{count}/{period}:refill=interval"),
        10 => format!("token-bucket:{count}/{period}:burst={burst}:borrow"),
        11 => format!("fixed-window:{count}/{unit}{all}"),
        _ => format!("gcra:{count}/{period}"),
    }
}

/// A request, or several for one call, none of which is on a hold.
pub(crate) fn requests_at_once(
    random: &Random,
    keys: &[KeyPlan],
    features: &Features,
    open: &mut Vec<(usize, u64)>,
) -> Requests {
    let mut one = || {
        let key = random.index(keys.len());
        (key, request(random, &keys[key], key, features, open))
    };
    let mut requests = vec![one()];
    while features.batches && !requests[0].1.is_on_hold() && random.chance(50) {
        let next = one();
        if !next.1.is_on_hold() {
            requests.push(next);
        }
    }
    requests
}

/// A request on the key with this index.
pub(crate) fn request(
    random: &Random,
    KeyPlan(policies): &KeyPlan,
    key: usize,
    features: &Features,
    open: &mut Vec<(usize, u64)>,
) -> Request {
    let cost = u32::try_from(*random.pick(&[1, 1, 1, 1, 2, 3, 7])).unwrap_or(1);
    let is_leased = policies.iter().any(|it| it.lease > 0);
    let has_queue = policies.iter().any(|it| it.policy.contains("leaky-queue"));
    let is_concurrency = policies.iter().any(|it| it.policy.starts_with("concurrency"));
    if features.holds && !has_queue && !is_leased && (is_concurrency || random.chance(30)) {
        let ttl = random.between(20, if is_concurrency { 400 } else { 3000 });
        if let Some(place) = open.iter().position(|it| it.0 == key)
            && random.chance(60)
        {
            let (_, id) = open[place];
            if random.chance(25) {
                return Request::Renew(id, ttl);
            }
            if random.chance(15) {
                // The client does not know whether it is open.
                return Request::Hold(id, cost, ttl);
            }
            open.swap_remove(place);
            return Request::Settle(id, random.chance(50).then_some(cost));
        }
        if is_concurrency && random.chance(10) {
            return if random.chance(30) { Request::Reset } else { Request::Peek(cost) };
        }
        let id = random.below(1 << 40);
        open.push((key, id));
        return Request::Hold(id, cost, ttl);
    }
    match random.below(20) {
        0 => Request::Peek(cost),
        1 => Request::Charge(cost),
        2 if !is_leased || random.chance(5) => Request::Refund(cost),
        3 if random.chance(40) => Request::Reset,
        4 if policies.iter().all(|it| can_reserve(&it.policy)) => {
            Request::Reserve(cost, random.below(2000))
        }
        _ => Request::Take(cost),
    }
}

pub(crate) fn can_reserve(policy: &str) -> bool {
    let families = ["gcra", "token-bucket", "leaky-bucket", "leaky-queue"];
    policy
        .split(',')
        .all(|limit| families.iter().any(|it| limit.starts_with(it)) && !limit.contains("interval"))
}

/// Each process changes its policies at other times. `action` is the one for a key and a policy.
pub(crate) fn policy_changes<A>(
    random: &Random,
    features: &Features,
    keys: &[KeyPlan],
    action: impl Fn(usize, usize) -> A,
) -> Vec<Step<A>> {
    let change = |_| {
        let key = random.index(keys.len());
        let policy = random.index(keys[key].0.len());
        let (at, process) = (random.below(SPAN), random.index(features.processes));
        Step { at, process, action: action(key, policy) }
    };
    (0..random.between(1, 12)).map(change).collect()
}
