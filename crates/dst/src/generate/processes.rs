//! Plans of processes that share a server.

use super::parts::{Features, SPAN, key, policy_changes, request};
use crate::{
    plan::{Action, FaultKind, KeyPlan, Plan, Step},
    random::Random,
};

pub(super) fn plan(seed: u64, random: &Random) -> Plan {
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
    let processes = features.processes;
    Plan { seed, processes, denial_cache, table: None, keys, steps }
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

/// Faults of the kinds that the seed has chosen. Their spans end some time before the run does.
fn faults(random: &Random, features: &Features) -> Vec<Step> {
    let all = FaultKind::ALL.iter().filter(|it| it.0.is_of_processes());
    let kinds: Vec<_> = all.filter(|_| random.chance(20)).collect();
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
