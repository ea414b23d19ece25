//! The steps of a run.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use parking_lot::Mutex;
use sluicegate_conformance::OracleSubject;
use sluicegate_core::PreparedPolicy;
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_server::{Config, simulation::SimulatedServer};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    client::Client,
    clock::{begin_turn, millis, now, start_clock},
    command::{Command, key_name},
    ledger::{Key, Ledger},
    plan::{Action, Bounds, Server, plan},
};
use crate::{
    event_log::{EventLog, Output, RunOutcome},
    network::{Link, LinkFault},
    plan::{self, KeyPlan, Plan, PolicyPlan, Step},
    random::{Random, RandomByTime},
    run::block_on,
    time::VirtualTime,
};

impl plan::World for Server {
    type Action = Action;
    const NAME: &str = "server";

    fn processes(&self) -> usize {
        self.clients
    }

    fn check(&self, action: &Action) -> Result<()> {
        if let Action::UsePolicy { key, .. } = action {
            ensure!(self.named.contains(key), "key {key} has no named policy");
        }
        Ok(())
    }

    fn generate(seed: u64, random: &Random) -> Plan<Self> {
        plan(seed, random)
    }

    fn run(plan: &Plan<Self>, output: Output) -> Result<RunOutcome> {
        run(plan, output)
    }

    fn simpler(&self, keys: &[KeyPlan]) -> Vec<Self> {
        // A key with several policies needs a name.
        let named: Vec<_> =
            self.named.iter().copied().filter(|key| keys[*key].0.len() > 1).collect();
        let mut simpler = vec![Self { bounds: None, timeout: None, ..self.clone() }];
        simpler.push(Self { named, ..self.clone() });
        simpler.extend((1..self.clients).map(|clients| Self { clients, ..self.clone() }));
        simpler
    }

    fn leave_out_key(&mut self, key: usize) {
        self.named.retain(|named| *named != key);
        self.named.iter_mut().for_each(|named| *named -= usize::from(*named > key));
    }
}

/// The bound of the table, which is never reached.
const TABLE: usize = 16 << 20;
/// Milliseconds between two looks at the requests that wait.
const WATCH: u64 = 5;
/// Milliseconds after the last step within which all requests are answered: those of one connection may wait one after the other.
const DRAIN: u64 = 300_000;
/// Time for the server to notice that clients have left: longer than it lets one not read.
const LEAVE: Duration = Duration::from_secs(15);

/// Runs a plan of a server.
pub(super) fn run(plan: &Plan<Server>, output: Output) -> Result<RunOutcome> {
    block_on(plan.seed, begin_turn, async {
        let mut world = World::new(plan, output)?;
        for step in &plan.steps {
            world.watch_until(step.at).await;
            world.take(step);
        }
        world.finish().await;
        let ledger = world.ledger.lock();
        Ok(RunOutcome::new(&ledger.log, world.time.millis(), ledger.violation.clone()))
    })?
}

struct World {
    plan: Server,
    time: VirtualTime,
    server: SimulatedServer,
    clients: Vec<Client>,
    rules: Rules,
    /// The names of the keys, and how commands give their policies.
    keys: Vec<(String, String)>,
    ledger: Arc<Mutex<Ledger>>,
    /// Connections that the server does not know to be lost.
    may_be_lost: usize,
}

impl World {
    fn new(plan: &Plan<Server>, output: Output) -> Result<Self> {
        let server = &plan.world;
        let random = Random::new(plan.seed, "server");
        let time = VirtualTime::start();
        start_clock(&random);
        let hash_keys = std::array::from_fn(|_| random.next());
        let store = MemoryStore::with_hash_keys(hash_keys, TABLE, WhenFull::Deny);
        let (mut keys, mut named) = (Vec::new(), Vec::new());
        let rules = Rules::new(&plan.keys, server)?;
        for index in 0..plan.keys.len() {
            named.push((key_name(index), rules.given(index)));
            let (policy, state) = (rules.policy(index)?, OracleSubject::default());
            keys.push(Key { policy, state, ready: None });
        }
        let log = Arc::new(EventLog::new(&time, output));
        let mut config = Config::default();
        let Bounds { clients, bytes } = server
            .bounds
            .unwrap_or(Bounds { clients: config.max_clients, bytes: config.max_buffer_memory });
        (config.max_clients, config.max_buffer_memory) = (clients, bytes);
        if let Some(timeout) = server.timeout.map(Duration::from_millis) {
            (config.timeouts.idle, config.timeouts.input) = (timeout, timeout);
        }
        let ledger = Ledger {
            bounds: Bounds { clients, bytes },
            keys,
            connections: Vec::new(),
            log,
            idle_timeout: server.timeout.map(Duration::from_millis),
            arrivals: 0,
            is_stopping: false,
            millis,
            violation: None,
        };
        let client = |index| {
            let random = RandomByTime::new(plan.seed, &format!("client {index}"));
            let paused = Rc::new(Cell::new(Instant::now()));
            Client { index, paused, connection: None, unused: Vec::new(), link: Link::new(random) }
        };
        Ok(Self {
            plan: server.clone(),
            time,
            server: SimulatedServer::start_with_rules(config, now, store, rules.text())
                .map_err(anyhow::Error::msg)?,
            rules,
            clients: (0..server.clients).map(client).collect(),
            keys: named,
            ledger: Arc::new(Mutex::new(ledger)),
            may_be_lost: 0,
        })
    }

    /// Lets time pass, and looks at the requests that wait.
    async fn watch_until(&self, millis: u64) {
        while self.time.millis() < millis {
            let next = millis.min(self.time.millis() + WATCH);
            sleep_until(self.time.at(next)).await;
            let mut ledger = self.ledger.lock();
            ledger.check_waiters();
            let counted = [self.server.clients(), self.server.waiting(), self.server.buffered()];
            ledger.check_bounds(counted);
        }
    }

    fn take(&mut self, step: &Step<Action>) {
        let client = &mut self.clients[step.process];
        if let Some(commands) = Command::of(&step.action) {
            let server = (&self.server, &self.ledger);
            return client.send(server, self.plan.unread, &self.keys, commands);
        }
        self.ledger.lock().log.add(format_args!("step: {step}"));
        match &step.action {
            &Action::UsePolicy { key, policy } => {
                let problem = self.rules.change(&self.server, key, policy);
                let mut ledger = self.ledger.lock();
                if let Some(problem) = problem {
                    ledger.violate(format_args!("rules: {problem}"));
                }
                match self.rules.policy(key) {
                    Ok(policy) => ledger.keys[key].policy = policy,
                    Err(error) => ledger.violate(format_args!("rules: {error:#}")),
                }
            }
            Action::ReloadSame | Action::ReloadInvalid => {
                let is_valid = step.action == Action::ReloadSame;
                let problem = self.rules.reload(&self.server, is_valid);
                if let Some(problem) = problem {
                    self.ledger.lock().violate(format_args!("rules: {problem}"));
                }
            }
            &Action::Link { fault, span, amount } => {
                let lost = client.link.fail(fault, span, amount);
                // The client may have left some of them, and the server does not know it yet.
                self.may_be_lost += lost;
                if matches!(fault, LinkFault::ResetLink | LinkFault::LoseLink) {
                    client.leave(&self.ledger);
                }
            }
            &Action::Pause { span } => {
                client.paused.set(Instant::now() + Duration::from_millis(span));
            }
            Action::Close => client.leave(&self.ledger),
            // They were sent.
            Action::Request(_)
            | Action::All { .. }
            | Action::Wait { .. }
            | Action::Pipeline { .. }
            | Action::Invalid { .. }
            | Action::Unfinished { .. } => {}
        }
    }

    /// Lets the requests end, stops the server, and checks that nothing is left.
    async fn finish(&mut self) {
        if !self.plan.stops {
            let end = self.time.millis() + DRAIN;
            // A client that has left a connection open does not know what still waits there.
            let is_idle = || self.ledger.lock().is_idle() && self.server.waiting() == 0;
            while !is_idle() && self.time.millis() < end {
                self.watch_until(self.time.millis() + 500).await;
            }
            // The last replies arrive.
            self.watch_until(self.time.millis() + 5000).await;
            self.ledger.lock().check_received();
            self.clients.iter_mut().for_each(|client| client.leave(&self.ledger));
            if self.plan.timeout.is_none() {
                // The server does not close them by itself.
                self.clients.iter_mut().for_each(|client| client.unused.clear());
            }
            sleep(LEAVE).await;
            let (clients, waiting) = (self.server.clients(), self.server.waiting());
            // The requests of a connection wait one after the other.
            if clients > self.may_be_lost || waiting > self.may_be_lost {
                self.ledger.lock().violate(format_args!(
                    "rest: {clients} clients are connected and {waiting} requests wait, after all have left"
                ));
            }
        }
        self.ledger.lock().is_stopping = true;
        let stopped = self.server.stop().await;
        let rest = (self.server.clients(), self.server.waiting(), self.server.buffered());
        if stopped.is_err() || rest != (0, 0, 0) {
            self.ledger.lock().violate(format_args!(
                "rest: after the stop ({stopped:?}): clients, requests that wait, bytes: {rest:?}"
            ));
        }
    }
}

// The rules of a server: policies by name, and their reloads.

/// The policies of all keys, of which some have names.
#[derive(Debug)]
pub(super) struct Rules {
    policies: Vec<Vec<PolicyPlan>>,
    named: Vec<usize>,
    /// The index of the policy in force of each key.
    used: Vec<usize>,
    /// The number of the rules in force.
    version: u64,
    /// Whether the file has invalid rules.
    are_invalid: bool,
}

impl Rules {
    pub(super) fn new(keys: &[KeyPlan], Server { named, .. }: &Server) -> Result<Self> {
        for (index, KeyPlan(policies)) in keys.iter().enumerate() {
            let is_named = named.contains(&index);
            ensure!(
                is_named || policies.len() == 1,
                "key {index} has several policies, but no name"
            );
            ensure!(policies.iter().all(|it| it.lease == 0), "a server has no leases");
        }
        let policies = keys.iter().map(|key| key.0.clone()).collect();
        let used = vec![0; keys.len()];
        let (named, version) = (named.clone(), 1);
        Ok(Self { policies, named, used, version, are_invalid: false })
    }

    /// How commands give the policy of a key.
    pub(super) fn given(&self, key: usize) -> String {
        let is_named = self.named.contains(&key);
        if is_named { format!("@policy{key}") } else { self.policies[key][0].policy.clone() }
    }

    /// The policy of a key that is in force.
    pub(super) fn policy(&self, key: usize) -> Result<PreparedPolicy> {
        self.policies[key][self.used[key]].prepare()
    }

    /// The text of the rules.
    pub(super) fn text(&self) -> String {
        self.with(&self.used)
    }

    fn with(&self, used: &[usize]) -> String {
        let mut text = "policies:\n  unused: 'gcra:1/1s'\n".to_owned();
        for &key in &self.named {
            let policy = &self.policies[key][used[key]].policy;
            text.push_str(&format!("  policy{key}: '{policy}'\n"));
        }
        text
    }

    /// Another policy of a key is in force from now on. What is wrong with the reload.
    pub(super) fn change(
        &mut self,
        server: &SimulatedServer,
        key: usize,
        policy: usize,
    ) -> Option<String> {
        let before = self.text();
        self.used[key] = policy;
        self.reload_valid(server, self.text() != before)
    }

    /// Reloads rules that change nothing. Returns the error in the report, if there is one.
    pub(super) fn reload(&mut self, server: &SimulatedServer, is_valid: bool) -> Option<String> {
        match is_valid {
            true => self.reload_valid(server, false),
            false => {
                let others = self.used.iter().zip(&self.policies);
                let others: Vec<_> = others.map(|(used, all)| (used + 1) % all.len()).collect();
                let report = server.reload(format!("{}  wrong: 'gcra:0/1s'\n", self.with(&others)));
                self.are_invalid = true;
                let is_right = report.as_ref().is_err_and(|error| error.contains("gcra:0/1s"));
                (!is_right).then(|| format!("{report:?} for invalid rules"))
            }
        }
    }

    fn reload_valid(&mut self, server: &SimulatedServer, differs: bool) -> Option<String> {
        // Those that replace invalid ones are a new version in any case.
        let changed = std::mem::take(&mut self.are_invalid) || differs;
        self.version += u64::from(changed);
        let expected = Ok((self.version, changed));
        let report = server.reload(self.text()).map(|it| (it.version, it.changed));
        (report != expected).then(|| format!("{report:?} in place of {expected:?}"))
    }
}
