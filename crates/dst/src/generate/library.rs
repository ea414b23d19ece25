//! Actions of clients of the library in a plan of processes.

use sluicegate_core::OnError;

use super::parts::{Features, SPAN};
use crate::{
    plan::{Action, KeyPlan, PermitEnd, PermitPlan, PolicyPlan, Request, Step},
    random::Random,
};

/// A wait, or a permit, `percent` times in a hundred, on a key that it suits.
pub(super) fn some_action(
    random: &Random,
    features: &Features,
    keys: &[KeyPlan],
    percent: u64,
) -> Option<Action> {
    if !random.chance(percent) {
        return None;
    }
    let key = random.index(keys.len());
    let KeyPlan(policies) = &keys[key];
    let has = |text| policies.iter().any(|it| it.policy.contains(text));
    let cost = *random.pick(&[1, 1, 1, 2, 5]);
    let timeout = *random.pick(&[1, 20, 300, 1500, 3000]);
    let can_hold = !has("leaky-queue") && policies.iter().all(|it| it.lease == 0);
    if can_hold && (has("concurrency") || features.holds && random.chance(60)) {
        // The shortest period of a limit on requests in flight.
        let is_long = policies
            .iter()
            .all(|it| !it.policy.contains("concurrency") || it.policy.contains("/30s"));
        let longest = if is_long { 20_000 } else { 400 };
        return Some(Action::Permit(permit(random, key, cost, timeout, longest)));
    }
    let takes = !has("concurrency");
    takes.then_some(Action::Wait { key, request: Request::Take(cost), timeout })
}

fn permit(random: &Random, key: usize, cost: u32, timeout: u64, longest: u64) -> PermitPlan {
    PermitPlan {
        key,
        cost,
        ttl: random.between(50, if random.chance(30) { longest } else { 400 }),
        timeout: if random.chance(40) { 0 } else { timeout },
        kept: *random.pick(&[0, 10, 60, 200, 900]),
        end: match random.below(4) {
            0 => PermitEnd::Dropped,
            1 => PermitEnd::Cancelled(random.between(1, 100)),
            _ => PermitEnd::Settled(u32::try_from(random.below(6)).unwrap_or_default()),
        },
        is_kept_alive: random.chance(50),
    }
}

/// The steps of shapers of one more key, which they share.
pub(super) fn shapers(random: &Random, processes: usize, keys: &mut Vec<KeyPlan>) -> Vec<Step> {
    let (count, capacity) = (random.between(2, 30), random.between(1, 20));
    let policy =
        format!("leaky-queue:{count}/{}:capacity={capacity}", random.pick(&["500ms", "1s"]));
    keys.push(KeyPlan(vec![PolicyPlan { policy, lease: 0, on_error: OnError::Deny }]));
    let key = keys.len() - 1;
    let gap = *random.pick(&[100, 300, 1000]);
    let mut steps = Vec::new();
    let mut at = random.below(gap);
    while at < SPAN {
        let count = random.index(6) + 1;
        steps.push(Step {
            at,
            process: random.index(processes),
            action: Action::Push { key, count },
        });
        at += 1 + random.below(2 * gap);
    }
    steps
}
