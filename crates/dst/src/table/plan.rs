//! Plans of a table in memory.

use sluicegate_core::OnError;
use sluicegate_memory::WhenFull;

use crate::{
    generate::{Features, SPAN, key, limit, policy_changes, requests_at_once},
    plan::{self, KeyPlan, Plan, PolicyPlan, Requests, Step},
    random::Random,
    text::text,
};

text! {
    /// A table in memory.
    #[derive(Copy)]
    pub(crate) struct Table {
        max_bytes: usize,
        when_full: WhenFull,
    }
}

text! {
    /// The action of a step.
    pub(crate) enum Action {
        /// Operations on keys, in one call if they are takes.
        Request(requests: Requests),
        /// Another policy is used for a key from now on.
        UsePolicy { key: usize, policy: usize },
        /// Takes from `count` keys that no step has named, under the policy of `key`.
        Flood { key: usize, count: usize },
        /// Takes from `count` keys of a flood, from the one with the number `first` on.
        Revisit { flood: usize, first: usize, count: usize },
        /// Takes from `count` keys, each under a policy of its own, from the one with the number `first` on.
        OwnPolicies { first: usize, count: usize },
        /// Holds a unit of each of `count` keys, from the one with the number `first` on, and settles it at once.
        Holds { first: usize, count: usize },
        /// The clock of the host is set by so many milliseconds while the process does not run next.
        StepClock { millis: i64 },
        /// The file that the process has locked is removed.
        RemoveLock,
        /// The table is saved to its file, while the next steps are taken.
        Save { steps: usize },
        /// The disk is full after so many KiB of the next file.
        FillDisk { kib: usize },
        /// The operation of the disk after so many others fails.
        FailDisk { after: u64 },
        /// The power fails instead of the operation of the disk after so many others; 0: now. Bytes that were not synced
        /// are lost in part.
        FailPower { after: u64 },
        /// The process ends, and starts again from the last file. The bound of its table is now so many KiB; 0: as before.
        Crash { kib: usize },
        /// The same, but it saves its table first.
        Stop { kib: usize },
        /// The same as a crash, but the file is cut by so many bytes, or one of its bits has changed if that is 0.
        Damage { cut: usize },
    }
}

impl plan::Action for Action {
    fn names(&mut self) -> (Vec<&mut usize>, Option<usize>) {
        match self {
            Self::Request(requests) => (requests.iter_mut().map(|it| &mut it.0).collect(), None),
            Self::UsePolicy { key, policy } => (vec![key], Some(*policy)),
            Self::Flood { key, .. } => (vec![key], None),
            _ => (Vec::new(), None),
        }
    }

    fn requests(&mut self) -> Option<&mut Requests> {
        if let Self::Request(requests) = self { Some(requests) } else { None }
    }
}

/// The least bound of a table, and more, in bytes.
const BOUNDS: [usize; 3] = [2 << 20, 2 << 20, 3 << 20];
/// More keys than a table has space for.
const FULL: u64 = 150_000;

/// Policies of floods: their keys take long to recover.
const LONG: [&str; 7] = [
    "fixed-window:1/12h",
    "fixed-window:20/12h:align=clock",
    "gcra:3/1h",
    "token-bucket:2/1h:burst=5",
    "sliding-log:2/1h",
    "gcra:1/1h,gcra:1/1d",
    "sliding-counter:5/2h",
];

/// Policies whose keys take much memory.
const EXPENSIVE: [&str; 2] = [
    "sliding-log:4000/1h,sliding-log:9000/12h",
    "gcra:9/1h,gcra:20/2h,token-bucket:30/3h,sliding-log:40/4h,sliding-counter:50/5h,\
     fixed-window:60/6h,leaky-bucket:70/7h,fixed-window:99/day",
];

pub(super) fn plan(seed: u64, random: &Random) -> Plan<Table> {
    let features = Features {
        processes: 1,
        holds: random.chance(40),
        batches: random.chance(30),
        policy_changes: random.chance(30),
    };
    let when_full = *random.pick(&[WhenFull::Deny, WhenFull::Deny, WhenFull::Allow]);
    let world = Table { max_bytes: *random.pick(&BOUNDS), when_full };
    let mut keys: Vec<_> = (0..=random.index(12)).map(|_| key(random, &features)).collect();
    for KeyPlan(policies) in &mut keys {
        for policy in policies {
            policy.lease = 0;
            if random.chance(30) {
                policy.policy = random.pick(&LONG).to_string();
            } else if features.holds && random.chance(20) {
                policy.policy =
                    format!("concurrency:{}/{}s", random.between(1, 9), 1 + random.below(3));
            } else if random.chance(10) {
                policy.policy = format!("{},{}", limit(random), limit(random));
            } else if random.chance(10) {
                policy.policy = random.pick(&EXPENSIVE).to_string();
            }
            // The check of a batch that is denied relies on costs that never pass.
            if features.batches && policy.policy.contains("borrow") {
                policy.policy = random.pick(&LONG).to_string();
            }
        }
    }
    let mut steps = requests(random, &features, &keys);
    if features.policy_changes {
        let change = |key, policy| Action::UsePolicy { key, policy };
        steps.extend(policy_changes(random, &features, &keys, change));
    }
    // A state that has recovered in part may be forgotten in part, and is back if the clock is: the check knows whole keys only.
    let is_whole = |policy: &PolicyPlan| {
        !policy.policy.contains(',') || LONG.contains(&policy.policy.as_str())
    };
    let turns_back = !features.holds && keys.iter().all(|key| key.0.iter().all(is_whole));
    steps.extend(floods(random, &mut keys));
    steps.extend(faults(random, turns_back));
    if random.chance(20) {
        steps.extend(reductions(random));
    }
    if random.chance(8) {
        steps.extend(own_policies(random));
    }
    steps.extend(rare(&Random::new(seed, "rare")));
    steps.sort_by_key(|step| step.at);
    Plan { seed, world, keys, steps }
}

/// What few seeds need: keys whose holds end at once, and a lock that is lost.
fn rare(random: &Random) -> Vec<Step<Action>> {
    let mut steps = Vec::new();
    let step = |action| Step { at: random.below(SPAN), process: 0, action };
    if random.chance(10) {
        let holds = |_| Action::Holds { first: random.index(5000), count: 1 + random.index(5000) };
        steps.extend((0..random.between(1, 4)).map(holds).map(step));
    }
    if random.chance(10) {
        steps.push(step(Action::RemoveLock));
    }
    steps
}

fn requests(random: &Random, features: &Features, keys: &[KeyPlan]) -> Vec<Step<Action>> {
    let gap = *random.pick(&[10, 40, 100]);
    let (mut steps, mut at, mut open) = (Vec::new(), 0, Vec::new());
    while at < SPAN {
        let requests = requests_at_once(random, keys, features, &mut open);
        steps.push(Step { at, process: 0, action: Action::Request(requests) });
        at += random.below(2 * gap);
    }
    steps
}

/// Floods of keys, each of which is visited again. They get a key for their policy.
fn floods(random: &Random, keys: &mut Vec<KeyPlan>) -> Vec<Step<Action>> {
    let most = *random.pick(&[0, 300, 300, 3_000, 3_000, 3_000, 20_000, FULL]);
    if most == 0 {
        return Vec::new();
    }
    let first = keys.len();
    for _ in 0..=random.index(2) {
        let on_error = OnError::Deny;
        let policy = random.pick(&LONG).to_string();
        keys.push(KeyPlan(vec![PolicyPlan { policy, lease: 0, on_error }]));
    }
    let mut steps = Vec::new();
    // Those that fill a table take most of the time of a run.
    let floods = random.between(1, if most == FULL { 4 } else { 6 });
    for flood in 0..floods {
        let key = first + random.index(keys.len() - first);
        let count = usize::try_from(random.between(1, most)).unwrap_or_default();
        let at = random.below(SPAN - 500);
        steps.push(Step { at, process: 0, action: Action::Flood { key, count } });
        for _ in 0..random.below(5) {
            let (first, count) = (random.index(count), random.index(1000));
            let flood = usize::try_from(random.below(flood + 1)).unwrap_or_default();
            let at = random.between(at, SPAN);
            steps.push(Step { at, process: 0, action: Action::Revisit { flood, first, count } });
        }
    }
    steps
}

/// Snapshots and restarts, in an order that makes sense.
fn faults(random: &Random, turns_back: bool) -> Vec<Step<Action>> {
    let clocks = random.chance(40);
    let bounds = random.chance(60);
    let damages = random.chance(20);
    let fills = random.chance(20);
    let fails = random.chance(40);
    let mut steps = Vec::new();
    for _ in 0..random.below(10) {
        let kib = if bounds { *random.pick(&[0, 2048, 3000, 4096]) } else { 0 };
        let action = match random.below(14) {
            0..5 => Action::Save { steps: random.index(30) },
            5..7 => Action::Crash { kib },
            7..9 => Action::Stop { kib },
            9 if damages => Action::Damage { cut: random.index(3) * 17 },
            10 if fills => Action::FillDisk { kib: random.index(40) },
            11 if clocks => {
                let steps = [200, 5000, 3_600_000, -200, -5000, -7_200_000];
                let steps = if turns_back { &steps[..] } else { &steps[..3] };
                Action::StepClock { millis: *random.pick(steps) }
            }
            12 if fails => Action::FailDisk { after: random.below(12) },
            13 if fails => Action::FailPower { after: random.below(12) },
            _ => Action::Save { steps: 0 },
        };
        steps.push(Step { at: random.between(100, SPAN), process: 0, action });
    }
    steps
}

/// Starts again in less memory, which may be too little, and then in as much; keys that had no space at first are visited at last.
fn reductions(random: &Random) -> Vec<Step<Action>> {
    let mut at = random.between(2000, 4000);
    let mut steps = Vec::new();
    for kib in [2048, 0] {
        at += random.between(1, 1500);
        steps.push(Step { at, process: 0, action: Action::Stop { kib } });
    }
    for flood in 0..random.index(4) {
        let at = random.between(at, SPAN);
        let action = Action::Revisit { flood, first: random.index(1000), count: 1000 };
        steps.push(Step { at, process: 0, action });
    }
    steps
}

/// More policies than there is space for their numbers, of which some have recovered when others come. Some keys come again.
fn own_policies(random: &Random) -> Vec<Step<Action>> {
    let most = *random.pick(&[200, 2_000, 8_000]);
    let step = |_| {
        let (first, count) = (random.index(most), 1 + random.index(most));
        Step { at: random.below(SPAN), process: 0, action: Action::OwnPolicies { first, count } }
    };
    (0..random.between(3, 8)).map(step).collect()
}
