//! Plans of processes that share a server.

use super::library;
use super::parts::{Features, SPAN, key, policy_changes, requests_at_once};
use crate::{
    plan::{Action, ClusterPlan, FaultKind, KeyPlan, Plan, Request, Step},
    random::Random,
};

/// How long faults last, in milliseconds; a primary may be away for longer, since its replica takes over.
const SPANS: [u64; 5] = [5, 40, 150, 600, 2000];
/// Faults that lose requests and replies, and nothing else.
const LOSSES: [FaultKind; 5] = [
    FaultKind::CutRequests,
    FaultKind::CutReplies,
    FaultKind::ResetLink,
    FaultKind::LoseLink,
    FaultKind::SlowLink,
];
const LONG_SPANS: [u64; 5] = [5, 40, 600, 2000, 8000];

pub(super) fn plan(seed: u64, random: &Random) -> Plan {
    let features = Features {
        processes: 1 + random.index(5),
        holds: random.chance(40),
        batches: random.chance(30),
        policy_changes: random.chance(30),
    };
    let cluster = cluster(&Random::new(seed, "cluster"));
    let denial_cache = *random.pick(&[0, 50, 1000, 1000]);
    let mut keys: Vec<_> = (0..=random.index(4)).map(|_| key(random, &features)).collect();
    let library = *random.pick(&[0, 0, 0, 20, 60]);
    let clients = 1 + random.index(8);
    let mut steps = requests(random, clients, library, &features, &keys, cluster);
    let shapers = if random.chance(15) {
        library::shapers(random, features.processes, &mut keys)
    } else {
        Vec::new()
    };
    steps.extend(shapers);
    if features.policy_changes {
        steps.extend(policy_changes(random, &features, &keys));
    }
    if random.chance(80) {
        steps.extend(faults(random, &features, keys.len(), cluster));
    }
    steps.sort_by_key(|step| step.at);
    let processes = features.processes;
    Plan { seed, processes, denial_cache, cluster, table: None, server: None, keys, steps }
}

/// A cluster in place of one server, for one seed of three.
fn cluster(random: &Random) -> Option<ClusterPlan> {
    let shards = 2 + random.index(2);
    let tags = *random.pick(&[0, 0, 1, 2]);
    let needs_all = random.chance(60);
    random.chance(33).then_some(ClusterPlan { shards, tags, needs_all })
}

/// The requests of each client, of which `library` percent are of the library.
fn requests(
    random: &Random,
    clients: usize,
    library: u64,
    features: &Features,
    keys: &[KeyPlan],
    cluster: Option<ClusterPlan>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let batches_keys = features.batches && keys.len() > 1;
    let is_leased = keys.iter().any(|KeyPlan(policies)| policies.iter().any(|it| it.lease > 0));
    for client in 0..clients {
        let process = client % features.processes;
        let gap = *random.pick(&[20, 60, 150, 400, 1500]);
        // Requests for leased keys wait for each other, which takes more than their deadline if there are many.
        let bursts = random.chance(10) && !is_leased;
        let mut at = random.below(gap);
        let mut open = Vec::new();
        while at < SPAN {
            let requests = requests_at_once(random, keys, features, &mut open);
            let multi_key = if batches_keys && random.chance(25) {
                multi_key(random, features, keys, cluster)
            } else {
                None
            };
            let action = match multi_key {
                Some(requests) => {
                    open.extend(requests.iter().filter_map(|&(key, it)| match it {
                        Request::Hold(id, ..) => Some((key, id)),
                        _ => None,
                    }));
                    Action::All { requests, timeout: 0 }
                }
                None => library::some_action(random, features, keys, library)
                    .unwrap_or(Action::Request(requests)),
            };
            steps.push(Step { at, process, action });
            // Now and then several at once, or always many.
            let (percent, gap) = if bursts { (90, 4 * gap) } else { (10, gap) };
            at += if random.chance(percent) { 0 } else { 1 + random.below(2 * gap) };
        }
    }
    steps
}

/// Requests for two keys or more, all or none, if there are keys for it.
fn multi_key(
    random: &Random,
    features: &Features,
    keys: &[KeyPlan],
    cluster: Option<ClusterPlan>,
) -> Option<Vec<(usize, Request)>> {
    let request = match random.below(10) {
        0 => Request::Peek(0),
        1..=3 if features.holds => Request::Hold(random.below(1 << 40), 0, random.between(20, 400)),
        _ => Request::Take(0),
    };
    let suits = |KeyPlan(policies): &KeyPlan| {
        policies.iter().all(|it| {
            let counts_holds = it.policy.starts_with("concurrency");
            // The check of a denied decision relies on costs that never pass.
            let borrows = it.policy.contains("borrow");
            let suits = if request.is_on_hold() {
                !it.policy.contains("leaky-queue") && it.lease == 0
            } else {
                !counts_holds
            };
            suits && !borrows
        })
    };
    let mut requests = Vec::new();
    for (key, _) in keys.iter().enumerate().filter(|(_, plan)| suits(plan)) {
        if random.chance(70) {
            requests.push((key, request.with_cost(*random.pick(&[1, 1, 2, 5]))));
        }
    }
    if let (true, Some(ClusterPlan { tags, .. })) = (request.is_on_hold(), cluster) {
        // A hold needs keys in one slot.
        let slot = |key: usize| key.checked_rem(tags).unwrap_or(key + 1);
        let first = requests.first().map(|it| slot(it.0));
        requests.retain(|it| Some(slot(it.0)) == first);
    }
    (requests.len() > 1).then_some(requests)
}

/// Faults of the kinds that the seed has chosen. Their spans end some time before the run does.
fn faults(
    random: &Random,
    features: &Features,
    keys: usize,
    cluster: Option<ClusterPlan>,
) -> Vec<Step> {
    let suits =
        |kind: FaultKind| kind.is_of_processes() || cluster.is_some() && kind.is_of_cluster();
    let all = FaultKind::ALL.iter().filter(|it| suits(it.0));
    // Few, or many that are short, of which the half only lose messages.
    let flaps = random.chance(15);
    let loses = flaps && random.chance(50);
    // Those of clusters are more frequent, because fewer seeds have them.
    let percent = |kind: FaultKind| match kind {
        _ if loses => 100 * u64::from(LOSSES.contains(&kind)),
        _ if kind.is_of_cluster() => 40,
        _ => 20,
    };
    let kinds: Vec<_> = all.filter(|it| random.chance(percent(it.0))).collect();
    if kinds.is_empty() {
        return Vec::new();
    }
    let count = if flaps { random.between(10, 60) } else { random.between(1, 8) };
    let fault = |_| {
        let (kind, _) = **random.pick(&kinds);
        let spans = match kind {
            FaultKind::LosePrimary => &LONG_SPANS[..],
            _ if flaps => &SPANS[..2],
            _ => &SPANS[..],
        };
        let span = *random.pick(spans);
        let amount = match kind {
            FaultKind::SlowLink => *random.pick(&[3, 8, 20, 40]),
            FaultKind::StepClock => *random.pick(&[-5000, -200, 200, 5000, 3_600_000]),
            FaultKind::MigrateSlot => i64::try_from(random.index(keys)).unwrap_or_default(),
            FaultKind::SlowScript => *random.pick(&[0, 1, 20, 200]),
            _ => *random.pick(&[0, 5, 100, 1000]),
        };
        let (at, process) = (random.between(200, SPAN - 1000), random.index(features.processes));
        let action = match cluster {
            Some(cluster) if kind.is_of_cluster() || kind.is_of_node() && random.chance(80) => {
                let node = random.index(cluster.nodes());
                Action::NodeFault { node, kind, span, amount }
            }
            _ => Action::Fault { kind, span, amount },
        };
        Step { at, process, action }
    };
    (0..count).map(fault).collect()
}
