//! Plans of the quota service, and of Envoys.

use anyhow::{Result, ensure};
use sluicegate_core::OnError;

use crate::{
    plan::{self, KeyPlan, Plan, PolicyPlan, Step},
    random::Random,
    text::text,
};

text! {
    /// Servers with one store, and Envoys.
    #[derive(Copy)]
    pub(crate) struct Quotas {
        envoys: usize,
        servers: usize,
        /// Whether the store is in the only server, which forgets it with each crash.
        forgets: bool,
        /// Number of Envoys that each limit is divided between.
        proxies: u32,
    }
}

text! {
    /// The action of a step.
    #[derive(Copy)]
    pub(crate) enum Action {
        /// An Envoy has so many requests per second for a key.
        Demand { key: usize, rate: u64 },
        /// An Envoy ends, and starts again after so many milliseconds.
        RestartEnvoy { span: u64 },
        /// The stream of an Envoy breaks. Messages on their way are lost.
        Break,
        /// A server is killed, and starts again after so many milliseconds.
        Crash { server: usize, span: u64 },
        /// The store is unavailable for so many milliseconds; if `applies`, it applies operations, but its answers are lost.
        Unavailable { span: u64, applies: bool },
        /// The store takes so many milliseconds for each answer, for some time.
        Slow { span: u64, latency: u64 },
    }
}

impl plan::Action for Action {
    fn names(&mut self) -> (Vec<&mut usize>, Option<usize>) {
        match self {
            Self::Demand { key, .. } => (vec![key], None),
            _ => (Vec::new(), None),
        }
    }
}

impl Quotas {
    /// Whether it can run an action.
    pub(super) fn check_action(&self, action: &Action) -> Result<()> {
        if let Action::Crash { server, .. } = action {
            ensure!(*server < self.servers, "unknown server `{server}`");
        }
        Ok(())
    }
}

/// How long steps are taken, in milliseconds.
pub(super) const SPAN: u64 = 90_000;

/// Policies that are divided, with their rates per second.
const POLICIES: [(&str, u64); 6] = [
    ("gcra:1000/1s:burst=100", 1000),
    ("gcra:200/1s:burst=40", 200),
    ("token-bucket:50/1s:burst=32", 50),
    ("leaky-bucket:3000/10s:capacity=64", 300),
    ("gcra:20/1s:burst=8", 20),
    ("gcra:100/100ms:burst=100", 1000),
];

pub(super) fn plan(seed: u64, random: &Random) -> Plan<Quotas> {
    let envoys = 1 + random.index(4);
    let forgets = random.chance(20);
    let servers = if forgets { 1 } else { 1 + random.index(3) };
    let proxies = *random.pick(&[2, 4, 4, 8]);
    let world = Quotas { envoys, servers, forgets, proxies };
    let drawn: Vec<_> = (0..=random.index(2)).map(|_| *random.pick(&POLICIES)).collect();
    let key = |(policy, _): &(&str, u64)| {
        let policy = (*policy).to_owned();
        KeyPlan(vec![PolicyPlan { policy, lease: 0, on_error: OnError::Deny }])
    };
    let keys = drawn.iter().map(key).collect();
    let mut steps = Vec::new();
    let parts = [0, 5, 10, 40, 60, 90, 150];
    for (index, (_, rate)) in drawn.iter().enumerate() {
        let mut demand = |at, process| {
            let rate = rate * random.pick(&parts) / 100;
            steps.push(Step { at, process, action: Action::Demand { key: index, rate } });
        };
        (0..envoys).for_each(|envoy| demand(random.below(8_000), envoy));
        for _ in 0..random.below(12) {
            demand(random.below(SPAN), random.index(envoys));
        }
    }
    steps.extend(faults(random, &world));
    steps.sort_by_key(|step| step.at);
    Plan { seed, world, keys, steps }
}

fn faults(random: &Random, world: &Quotas) -> Vec<Step<Action>> {
    let [breaks, crashes, restarts, stores] =
        [40, 40, 40, 30].map(|percent| random.chance(percent));
    let mut steps = Vec::new();
    for _ in 0..random.below(10) {
        let span = random.between(1, 20_000);
        let action = match random.below(5) {
            0 if breaks => Action::Break,
            1 if crashes => Action::Crash { server: random.index(world.servers), span },
            2 if restarts => Action::RestartEnvoy { span: 1 + span / 4 },
            3 if stores => Action::Unavailable { span, applies: random.chance(50) },
            4 if stores => Action::Slow { span, latency: random.below(5_000) },
            _ => continue,
        };
        let (at, process) = (random.below(SPAN), random.index(world.envoys));
        steps.push(Step { at, process, action });
    }
    steps
}
