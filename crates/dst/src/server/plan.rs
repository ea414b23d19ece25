//! Plans of a server of Sluicegate, with an embedded store, and its clients.

use sluicegate_core::OnError;

use crate::{
    generate::{Features, SPAN, can_reserve, key, policy_changes, request},
    network::LinkFault,
    plan::{self, KeyPlan, Plan, PolicyPlan, Request, Requests, Step},
    random::Random,
    text::text,
};

text! {
    /// A server of Sluicegate.
    pub(crate) struct Server {
        clients: usize,
        /// Bytes of replies that a client may leave unread before the server cannot write.
        unread: usize,
        /// Whether the server stops after the last step, while requests wait.
        stops: bool,
        /// Bounds that clients reach; otherwise those of the default settings apply.
        bounds: Option<Bounds>,
        /// How long a client may be idle or take for a command, in milliseconds, before it is closed; otherwise longer than a run.
        timeout: Option<u64>,
        /// Keys whose policies have names in the rules of the server.
        named: Vec<usize>,
    }
}

text! {
    /// Bounds of a server.
    #[derive(Copy)]
    pub(crate) struct Bounds {
        /// Maximum number of clients at a time.
        clients: usize,
        /// Maximum number of bytes that are buffered for all clients.
        bytes: usize,
    }
}

text! {
    /// The action of a step.
    pub(crate) enum Action {
        /// Operations on keys, which a client sends at once.
        Request(requests: Requests),
        /// A take or a hold of several keys, all or none. If `timeout` is more than 0, it may wait for that many milliseconds.
        All { timeout: u64, requests: Requests },
        /// A take or a hold that may wait for up to `timeout` milliseconds.
        Wait { key: usize, request: Request, timeout: u64 },
        /// Takes `cost` units from `key` by `count` commands, which a client sends at once.
        Pipeline { key: usize, cost: u32, count: usize },
        /// The client sends a take and bytes that are no command. The server answers both, and closes the connection.
        Invalid { key: usize },
        /// The client sends so many bytes of a command that does not end, and goes on with another connection.
        Unfinished { bytes: usize },
        /// The server reloads its rules, in which a key has another policy.
        UsePolicy { key: usize, policy: usize },
        /// The server reloads the rules in force.
        ReloadSame,
        /// The server reloads invalid rules. The first error is found late, after policies that have changed.
        ReloadInvalid,
        /// Something goes wrong between a client and the server, for `span` milliseconds.
        Link { fault: LinkFault, span: u64, amount: u64 },
        /// The client does not read for so many milliseconds.
        Pause { span: u64 },
        /// The client closes its connection, and connects again for its next request.
        Close,
    }
}

impl plan::Action for Action {
    fn names(&mut self) -> (Vec<&mut usize>, Option<usize>) {
        match self {
            Self::Request(requests) | Self::All { requests, .. } => {
                (requests.iter_mut().map(|it| &mut it.0).collect(), None)
            }
            Self::UsePolicy { key, policy } => (vec![key], Some(*policy)),
            Self::Wait { key, .. } | Self::Pipeline { key, .. } | Self::Invalid { key } => {
                (vec![key], None)
            }
            _ => (Vec::new(), None),
        }
    }

    fn requests(&mut self) -> Option<&mut Requests> {
        if let Self::Request(requests) = self { Some(requests) } else { None }
    }

    fn merged(&self, other: &Self) -> Option<Self> {
        let &Self::Pipeline { key, cost, count } = self else { return None };
        match other {
            &Self::Pipeline { key: other, cost: same, count: more }
                if (other, same) == (key, cost) =>
            {
                Some(Self::Pipeline { key, cost, count: count + more })
            }
            _ => None,
        }
    }
}

pub(super) fn plan(seed: u64, random: &Random) -> Plan<Server> {
    let rules = &Random::new(seed, "rules");
    let features = Features {
        processes: 1 + random.index(8),
        holds: random.chance(60),
        batches: random.chance(50),
        policy_changes: rules.chance(30),
    };
    let mut keys: Vec<_> = (0..=random.index(4)).map(|_| key(random, &features)).collect();
    // Windows that begin with a request, for requests that wait behind holds.
    let begins = random.chance(15);
    if begins {
        keys = vec![window(random)];
    }
    for KeyPlan(policies) in &mut keys {
        for policy in policies {
            (policy.lease, policy.on_error) = (0, OnError::Deny);
        }
    }
    let unread = *random.pick(&[usize::MAX, usize::MAX, 2000, 300, 64]);
    let stops = random.chance(25);
    let is_named =
        |(index, key): (usize, &KeyPlan)| (key.0.len() > 1 || rules.chance(20)).then_some(index);
    let named: Vec<_> = keys.iter().enumerate().filter_map(is_named).collect();
    let mut steps = Vec::new();
    if !named.is_empty() {
        steps.extend(reloads(rules, &features, &keys, &named));
    }
    let clients = features.processes;
    let bounds = bounds(&Random::new(seed, "bounds"), clients);
    steps.extend(pipelines(&Random::new(seed, "pipelines"), features.processes, keys.len()));
    let broken = &Random::new(seed, "broken");
    let timeout = broken.chance(15).then(|| *broken.pick(&[100, 700, 3000]));
    if timeout.is_some() || broken.chance(if bounds.is_some() { 40 } else { 10 }) {
        steps.extend(broken_commands(broken, clients, keys.len()));
    }
    let world = Server { clients, unread, stops, bounds, timeout, named };
    let waits = if begins { 50 } else { *random.pick(&[0, 10, 30, 60]) };
    for client in 0..features.processes {
        steps.extend(requests(random, &features, &keys, client, waits));
    }
    if random.chance(70) {
        steps.extend(faults(random, features.processes));
    }
    steps.sort_by_key(|step| step.at);
    Plan { seed, world, keys, steps }
}

/// Bounds that clients reach, in one seed of five.
fn bounds(random: &Random, clients: usize) -> Option<Bounds> {
    random.chance(20).then(|| Bounds {
        clients: 1 + random.index(clients),
        bytes: *random.pick(&[60, 200, 600, 2000, 20_000]),
    })
}

/// Pipelines that take several turns of their connections, in one seed of ten. All of them together fit behind a command that
/// waits.
fn pipelines(random: &Random, clients: usize, keys: usize) -> Vec<Step<Action>> {
    if !random.chance(10) {
        return Vec::new();
    }
    let pipeline = |_| {
        let count = 500 + random.index(600);
        let action = Action::Pipeline { key: random.index(keys), cost: 1, count };
        Step { at: random.below(SPAN), process: random.index(clients), action }
    };
    (0..=random.index(2)).map(pipeline).collect()
}

/// Clients that send what is no command, or not the whole of one.
fn broken_commands(random: &Random, clients: usize, keys: usize) -> Vec<Step<Action>> {
    let broken = |_| {
        let action = match random.chance(50) {
            true => Action::Invalid { key: random.index(keys) },
            false => Action::Unfinished { bytes: *random.pick(&[3, 100, 3000, 20_000, 60_000]) },
        };
        Step { at: random.below(SPAN), process: random.index(clients), action }
    };
    (0..random.between(1, 4)).map(broken).collect()
}

/// Reloads of the rules: some change a policy, some are invalid.
fn reloads(
    random: &Random,
    features: &Features,
    keys: &[KeyPlan],
    named: &[usize],
) -> Vec<Step<Action>> {
    let change = |key, policy| Action::UsePolicy { key, policy };
    let mut steps = policy_changes(random, features, keys, change);
    steps.retain(|it| matches!(it.action, Action::UsePolicy { key, .. } if named.contains(&key)));
    for _ in 0..random.below(4) {
        let kinds = [Action::ReloadSame, Action::ReloadInvalid, Action::ReloadInvalid];
        let action = random.pick(&kinds).clone();
        steps.push(Step { at: random.below(SPAN), process: 0, action });
    }
    steps
}

/// A key with a window that begins with its first request.
fn window(random: &Random) -> KeyPlan {
    let period = random.pick(&["500ms", "1s", "3s"]);
    let policy = format!("fixed-window:{}/{period}", random.between(1, 9));
    KeyPlan(vec![PolicyPlan { policy, lease: 0, on_error: OnError::Deny }])
}

/// The requests of a client. `waits` is the percentage of those that may wait.
fn requests(
    random: &Random,
    features: &Features,
    keys: &[KeyPlan],
    client: usize,
    waits: u64,
) -> Vec<Step<Action>> {
    let gap = *random.pick(&[20, 60, 150, 400]);
    let (mut steps, mut at, mut open) = (Vec::new(), random.below(gap), Vec::new());
    while at < SPAN {
        let index = random.index(keys.len());
        let action = if random.chance(waits) {
            wait(random, features, index, &keys[index], &mut open)
        } else if random.chance(10) {
            multi_key(random, keys, waits)
        } else {
            None
        };
        let action = action.unwrap_or_else(|| {
            let more = if features.batches { random.index(6) } else { 0 };
            let one = |_| {
                let key = random.index(keys.len());
                (key, request(random, &keys[key], key, features, &mut open))
            };
            Action::Request((0..=more).map(one).collect())
        });
        steps.push(Step { at, process: client, action });
        at += random.below(2 * gap);
    }
    steps
}

/// A request that may wait.
fn wait(
    random: &Random,
    features: &Features,
    key: usize,
    KeyPlan(policies): &KeyPlan,
    open: &mut Vec<(usize, u64)>,
) -> Option<Action> {
    // One that waits while its policy is changed goes on with the old one: each of its attempts, which no client sees,
    // changes the policy of the key back.
    if policies.len() > 1 {
        return None;
    }
    // Beside a window, the time at which it is assigned a departure is unknown.
    let is_queue = policies[0].policy.contains("leaky-queue");
    if is_queue && !can_reserve(&policies[0].policy) {
        return None;
    }
    let timeout = *random.pick(&[1, 20, 300, 1500, 3000]);
    let cost = *random.pick(&[1, 1, 1, 2, 5]);
    let is_concurrency = policies[0].policy.starts_with("concurrency");
    let holds = is_concurrency || features.holds && random.chance(40);
    let request = if holds && !is_queue {
        // Several connections may ask for the same hold, as a client does that has lost one.
        let id = random.below(if random.chance(30) { 2 } else { 1 << 40 });
        open.push((key, id));
        Request::Hold(id, cost, random.between(20, if is_concurrency { 400 } else { 3000 }))
    } else {
        Request::Take(cost)
    };
    Some(Action::Wait { key, request, timeout })
}

/// A take on several keys, which waits in `waits` percent. The check of one that is denied relies on policies that do not
/// borrow.
fn multi_key(random: &Random, keys: &[KeyPlan], waits: u64) -> Option<Action> {
    let waits = random.chance(waits);
    let is_simple = |key: &KeyPlan| {
        let is_simple =
            |policy: &str| !policy.contains("borrow") && !policy.contains("concurrency");
        // One that waits goes on with the policies that it began with.
        key.0.iter().all(|it| is_simple(&it.policy)) && !(waits && key.0.len() > 1)
    };
    let takes: Vec<_> = keys
        .iter()
        .enumerate()
        .filter(|(_, key)| is_simple(key) && (can_reserve(&key.0[0].policy) || random.chance(70)))
        // Some can never pass.
        .map(|(index, _)| (index, *random.pick(&[1, 1, 2, 2, 3, 3, 3, 60])))
        .collect();
    if takes.is_empty() {
        return None;
    }
    let (mut request, mut timeout) = (Request::Take(0), 0);
    if waits {
        timeout = *random.pick(&[1, 20, 300, 1500, 3000]);
        let has_queue = takes.iter().any(|it| keys[it.0].0[0].policy.contains("leaky-queue"));
        if !has_queue && !random.chance(50) {
            request = Request::Hold(random.below(1 << 40), 0, random.between(20, 3000));
        }
    }
    let requests = takes.into_iter().map(|(key, cost)| (key, request.with_cost(cost))).collect();
    Some(Action::All { requests, timeout })
}

fn faults(random: &Random, clients: usize) -> Vec<Step<Action>> {
    let fault = |_| {
        let (span, amount) = (random.between(10, 3000), random.below(300));
        let action = match random.below(11) {
            0 | 1 => Action::Pause { span },
            2 | 3 => Action::Close,
            _ => Action::Link { fault: *random.pick(LinkFault::ALL), span, amount },
        };
        Step { at: random.below(SPAN), process: random.index(clients), action }
    };
    (0..random.between(1, 12)).map(fault).collect()
}
