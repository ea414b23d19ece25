//! Plans of processes that share a server, or a cluster.

use sluicegate_core::OnError;

use crate::{
    generate::{Features, SPAN, key, policy_changes, requests_at_once},
    network::LinkFault,
    plan::{self, KeyPlan, Plan, PolicyPlan, Request, Requests, Step},
    random::Random,
    text::text,
};

text! {
    /// Processes that share a server or a cluster.
    pub(crate) struct Shared {
        processes: usize,
        /// How long a process repeats a denial from its cache, in milliseconds.
        denial_cache: u64,
        cluster: Option<ClusterPlan>,
    }
}

text! {
    /// A cluster, with a replica for each shard.
    #[derive(Copy)]
    pub(crate) struct ClusterPlan {
        shards: usize,
        /// The hash tags that the names of keys have in turn; 0: none.
        tags: usize,
        /// Whether no key is served while a shard has no primary.
        needs_all: bool,
    }
}

text! {
    /// The action of a step.
    pub(crate) enum Action {
        /// Operations on keys, in one call if there are several.
        Request(requests: Requests),
        /// Takes, peeks or holds of several keys, all or none, which differ only in their cost.
        All(requests: Requests),
        /// A take that waits in the library for up to `timeout` milliseconds.
        Wait { key: usize, cost: u32, timeout: u64 },
        /// The same, but it is dropped after `after` milliseconds.
        Abandon { key: usize, cost: u32, timeout: u64, after: u64 },
        /// A permit of the library.
        Permit(permit: PermitPlan),
        /// Adds `count` items to the shaper that the process has for a key.
        Push { key: usize, count: usize },
        /// The process uses another policy for a key from now on.
        UsePolicy { key: usize, policy: usize },
        /// Something goes wrong between the process and a node, or all, for `span` milliseconds.
        Link { node: Option<usize>, fault: LinkFault, span: u64, amount: u64 },
        /// Something goes wrong with a node, all, or the process.
        Fault { node: Option<usize>, kind: FaultKind, span: u64, amount: i64 },
        /// The slot of a key moves to the shard of a node, key by key, within `span` milliseconds.
        MigrateSlot { key: usize, node: usize, span: u64 },
    }
}

text! {
    /// A permit of the library: its units and its lifetime.
    #[derive(Copy)]
    pub(crate) struct PermitPlan {
        key: usize,
        cost: u32,
        /// Its lifetime, how long its client waits for it, and how long the client keeps it, in milliseconds.
        ttl: u64,
        timeout: u64,
        kept: u64,
        end: PermitEnd,
        /// Whether it is renewed while it is kept.
        is_kept_alive: bool,
    }
}

text! {
    /// How a permit ends.
    #[derive(Copy)]
    pub(crate) enum PermitEnd {
        /// It is settled for this many units.
        Settled(units: u32),
        Dropped,
        /// The request for it is dropped after this many milliseconds, if it has no answer by then.
        Cancelled(after: u64),
    }
}

text! {
    /// A fault of servers or processes.
    pub(crate) units FaultKind {
        /// The server does not run.
        PauseServer,
        /// The server ends, and starts again without the writes of the last `amount` milliseconds.
        RestartServer,
        /// A replica takes over, without the writes of the last `amount` milliseconds.
        FailOver,
        /// The primary of a shard ends for `span`. After half of it, at most half a second, its replica takes over, without the writes of the
        /// last `amount` milliseconds.
        LosePrimary,
        /// A node of a cluster gets no change of the slots.
        StaleMap,
        /// The next script runs for `span` milliseconds. After `amount`, if it is not zero, the server replies that it is busy.
        SlowScript,
        /// The server drops its scripts.
        FlushScripts,
        /// The server accepts no writes.
        ReadOnly,
        /// The server has no memory for writes.
        OutOfMemory,
        /// The clock of the server is set forward by `amount` milliseconds, or back.
        StepClock,
        /// The clock of a server stands still, and goes on from there.
        StopClock,
        /// A process does not run.
        PauseProcess,
        /// A process ends, and another one replaces it.
        RestartProcess,
        /// The same, but it returns its leases first.
        CloseProcess,
    }
}

impl ClusterPlan {
    /// Primaries and replicas.
    pub(crate) const fn nodes(&self) -> usize {
        2 * self.shards
    }
}

impl FaultKind {
    /// Whether it happens only to nodes of clusters.
    pub(super) const fn is_of_cluster(self) -> bool {
        matches!(self, Self::LosePrimary | Self::StaleMap)
    }

    pub(super) const fn is_of_process(self) -> bool {
        matches!(self, Self::PauseProcess | Self::RestartProcess | Self::CloseProcess)
    }

    /// Whether answers may be fallbacks while it lasts, and a while after it.
    pub(super) const fn disturbs(self) -> bool {
        // A slow script begins later, and a primary is replaced before it is back.
        !matches!(
            self,
            Self::FlushScripts
                | Self::StepClock
                | Self::StopClock
                | Self::StaleMap
                | Self::LosePrimary
                | Self::SlowScript
        )
    }
}

impl plan::Action for Action {
    fn names(&mut self) -> (Vec<&mut usize>, Option<usize>) {
        match self {
            Self::Request(requests) | Self::All(requests) => {
                (requests.iter_mut().map(|it| &mut it.0).collect(), None)
            }
            Self::UsePolicy { key, policy } => (vec![key], Some(*policy)),
            Self::Permit(PermitPlan { key, .. })
            | Self::Wait { key, .. }
            | Self::Abandon { key, .. }
            | Self::Push { key, .. }
            | Self::MigrateSlot { key, .. } => (vec![key], None),
            Self::Link { .. } | Self::Fault { .. } => (Vec::new(), None),
        }
    }

    fn requests(&mut self) -> Option<&mut Requests> {
        if let Self::Request(requests) = self { Some(requests) } else { None }
    }
}

/// How long faults last, in milliseconds; a primary may be away for longer, since its replica takes over.
const SPANS: [u64; 5] = [5, 40, 150, 600, 2000];
const LONG_SPANS: [u64; 5] = [5, 40, 600, 2000, 8000];

pub(super) fn plan(seed: u64, random: &Random) -> Plan<Shared> {
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
    if random.chance(15) {
        steps.extend(shapers(random, features.processes, &mut keys));
    }
    if features.policy_changes {
        let change = |key, policy| Action::UsePolicy { key, policy };
        steps.extend(policy_changes(random, &features, &keys, change));
    }
    if random.chance(80) {
        steps.extend(faults(random, &features, keys.len(), cluster));
    }
    steps.sort_by_key(|step| step.at);
    let world = Shared { processes: features.processes, denial_cache, cluster };
    Plan { seed, world, keys, steps }
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
) -> Vec<Step<Action>> {
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
                multi_key(random, features, (keys, &open), cluster)
            } else {
                None
            };
            let action = match multi_key {
                Some(requests) => {
                    open.extend(requests.iter().filter_map(|&(key, it)| match it {
                        Request::Hold(id, ..) => Some((key, id)),
                        _ => None,
                    }));
                    Action::All(requests)
                }
                None => some_action(random, features, keys, library)
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
    (keys, open): (&[KeyPlan], &[(usize, u64)]),
    cluster: Option<ClusterPlan>,
) -> Option<Requests> {
    let request = match random.below(10) {
        0 => Request::Peek(0),
        1..=3 if features.holds => {
            // The hold may be open on one of the keys.
            let known = open.last().filter(|_| random.chance(20));
            let id = known.map_or_else(|| random.below(1 << 40), |it| it.1);
            Request::Hold(id, 0, random.between(20, 400))
        }
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

/// What may go wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Link(LinkFault),
    Fault(FaultKind),
    Migration,
}

/// Faults of the kinds that the seed has chosen. Their spans end some time before the run does.
fn faults(
    random: &Random,
    features: &Features,
    keys: usize,
    cluster: Option<ClusterPlan>,
) -> Vec<Step<Action>> {
    // Few, or many that are short, of which the half only lose messages.
    let flaps = random.chance(15);
    let loses = flaps && random.chance(50);
    let links = LinkFault::ALL.iter().map(|it| Trouble::Link(*it));
    let faults = FaultKind::ALL.iter().map(|it| Trouble::Fault(*it));
    // Those of clusters are more frequent, because fewer seeds have them.
    let percent = |trouble: &Trouble| match trouble {
        Trouble::Link(fault) if loses => 100 * u64::from(*fault != LinkFault::Cut),
        _ if loses => 0,
        Trouble::Fault(kind) if kind.is_of_cluster() => 40 * u64::from(cluster.is_some()),
        Trouble::Migration => 40 * u64::from(cluster.is_some()),
        _ => 20,
    };
    let all = links.chain(faults).chain([Trouble::Migration]);
    let all: Vec<_> = all.filter(|it| random.chance(percent(it))).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let count = if flaps { random.between(10, 60) } else { random.between(1, 8) };
    let fault = |_| {
        let trouble = *random.pick(&all);
        let spans = match trouble {
            Trouble::Fault(FaultKind::LosePrimary) => &LONG_SPANS[..],
            _ if flaps => &SPANS[..2],
            _ => &SPANS[..],
        };
        let span = *random.pick(spans);
        let (at, process) = (random.between(200, SPAN - 1000), random.index(features.processes));
        let node = |is_of_one: bool| {
            let cluster = cluster.filter(|_| is_of_one || random.chance(80));
            cluster.map(|it| random.index(it.nodes()))
        };
        let action = match trouble {
            Trouble::Link(fault) => {
                let amount = *random.pick(&[3, 8, 20, 40]);
                Action::Link { node: node(false), fault, span, amount }
            }
            Trouble::Fault(kind) => {
                let amount = match kind {
                    FaultKind::StepClock => *random.pick(&[-5000, -200, 200, 5000, 3_600_000]),
                    FaultKind::SlowScript => *random.pick(&[0, 1, 20, 200]),
                    _ => *random.pick(&[0, 5, 100, 1000]),
                };
                let node = if kind.is_of_process() { None } else { node(kind.is_of_cluster()) };
                Action::Fault { node, kind, span, amount }
            }
            Trouble::Migration => {
                let node = node(true).unwrap_or_default();
                Action::MigrateSlot { key: random.index(keys), node, span }
            }
        };
        Step { at, process, action }
    };
    (0..count).map(fault).collect()
}

/// A wait, or a permit, `percent` times in a hundred, on a key that it suits.
fn some_action(
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
    if has("concurrency") {
        return None;
    }
    Some(match random.chance(30) {
        true => Action::Abandon { key, cost, timeout, after: random.between(1, 30) },
        false => Action::Wait { key, cost, timeout },
    })
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
fn shapers(random: &Random, processes: usize, keys: &mut Vec<KeyPlan>) -> Vec<Step<Action>> {
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
