//! Plans from seeds. Each seed uses some kinds of policies, operations and faults, and leaves others out: a run in which
//! everything happens at once finds less.

use sluicegate_core::{GcraName, OnError, Policy, Share};

use crate::{
    plan::{Action, KeyPlan, Plan, Request, Step},
    random::Random,
};

/// How long steps are taken, in milliseconds.
const SPAN: u64 = 8_000;

/// The kinds of a fault.
const FAULTS: usize = 15;

impl Plan {
    /// The plan of a seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let random = Random::new(seed, "plan");
        let processes = 1 + random.index(4);
        let denial_cache = *random.pick(&[0, 50, 1000, 1000]);
        let keys: Vec<_> = (0..=random.index(4)).map(|_| key(&random)).collect();
        let holds = random.chance(40);
        let mut steps = Vec::new();
        requests(&random, processes, &keys, holds, &mut steps);
        if random.chance(80) {
            faults(&random, processes, &mut steps);
        }
        steps.sort_by_key(|step| step.at);
        Self { seed, processes, denial_cache, keys, steps }
    }
}

fn key(random: &Random) -> KeyPlan {
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
    KeyPlan { policy, lease, on_error }
}

fn limit(random: &Random) -> String {
    let (count, burst) = (random.between(1, 30), random.between(1, 40));
    let period = random.pick(&["1s", "500ms", "3s", "7s"]);
    match random.below(10) {
        0 | 1 => format!("gcra:{count}/{period}:burst={burst}"),
        2 => format!("token-bucket:{count}/{period}:burst={burst}"),
        3 => format!("leaky-bucket:{count}/{period}:burst={burst}"),
        4 => format!("leaky-queue:{count}/{period}:burst={burst}"),
        5 => format!("fixed-window:{count}/{period}"),
        6 => format!("sliding-log:{count}/{period}"),
        7 => format!("sliding-counter:{count}/{period}"),
        8 => format!("token-bucket:{count}/{period}:refill=interval"),
        _ => format!("gcra:{count}/{period}"),
    }
}

/// The requests of each client.
fn requests(
    random: &Random,
    processes: usize,
    keys: &[KeyPlan],
    holds: bool,
    steps: &mut Vec<Step>,
) {
    let clients = 1 + random.index(8);
    for client in 0..clients {
        let process = client % processes;
        let gap = *random.pick(&[20, 60, 150, 400]);
        let mut at = random.below(gap);
        let mut open = Vec::new();
        while at < SPAN {
            let key = random.index(keys.len());
            let request = request(random, &keys[key], key, holds, &mut open);
            steps.push(Step { at, action: Action::Request { process, key, request } });
            // Now and then several at once.
            at += if random.chance(10) { 0 } else { 1 + random.below(2 * gap) };
        }
    }
}

fn request(
    random: &Random,
    plan: &KeyPlan,
    key: usize,
    holds: bool,
    open: &mut Vec<(usize, u64)>,
) -> Request {
    let cost = u32::try_from(*random.pick(&[1, 1, 1, 1, 2, 3, 7])).unwrap_or(1);
    let has_holds = holds && !plan.policy.contains("leaky-queue") && plan.lease == 0;
    if has_holds && random.chance(30) {
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
        2 if plan.lease == 0 => Request::Refund(cost),
        3 if random.chance(20) => Request::Reset,
        4 if can_reserve(&plan.policy) => Request::Reserve(cost, random.below(2000)),
        _ => Request::Take(cost),
    }
}

fn can_reserve(policy: &str) -> bool {
    let families = ["gcra", "token-bucket", "leaky-bucket", "leaky-queue"];
    policy
        .split(',')
        .all(|limit| families.iter().any(|it| limit.starts_with(it)) && !limit.contains("interval"))
}

/// Faults of the kinds that the seed has chosen, in a part of the time: then everything must recover.
fn faults(random: &Random, processes: usize, steps: &mut Vec<Step>) {
    let kinds: Vec<u64> = (0..FAULTS as u64).filter(|_| random.chance(25)).collect();
    if kinds.is_empty() {
        return;
    }
    for _ in 0..random.between(1, 8) {
        let at = random.between(200, SPAN - 1000);
        let span = *random.pick(&[5, 40, 150, 600, 2000]);
        let process = random.index(processes);
        let lost = *random.pick(&[0, 5, 100, 1000]);
        let action = match random.pick(&kinds) {
            0 => Action::CutRequests { process, span },
            1 => Action::CutReplies { process, span },
            2 => Action::Cut { process, span },
            3 => Action::ResetLink { process },
            4 => Action::LoseLink { process },
            5 => Action::Slow { process, delay: random.between(3, 40), span },
            6 => Action::PauseServer { span },
            7 => Action::RestartServer { span, lost },
            8 => Action::Failover { lost },
            9 => Action::FlushScripts,
            10 => Action::ReadOnly { span },
            11 => Action::OutOfMemory { span },
            12 => Action::StepClock { by: *random.pick(&[-5000, -200, 200, 5000, 3_600_000]) },
            13 => Action::PauseProcess { process, span },
            _ => Action::RestartProcess { process },
        };
        steps.push(Step { at, action });
    }
}
