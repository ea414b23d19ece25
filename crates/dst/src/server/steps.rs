//! The steps of a run.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use sluicegate_conformance::OracleSubject;
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_server::{Config, simulation::SimulatedServer};
use tokio::{
    runtime::{Builder, LocalOptions},
    time::{Instant, sleep, sleep_until},
};

use super::{
    client::Client,
    clock,
    command::{Command, key_name},
    ledger::{Key, Ledger},
    plan::{Bounds, ServerPlan},
    rules::Rules,
};
use crate::{
    event_log::{EventLog, Output},
    network::{Direction, Link},
    outcome::RunOutcome,
    plan::{Action, FaultKind, Plan, Step},
    random::{Random, RandomByTime},
    time::VirtualTime,
};

/// The bound of the table, which is never reached.
const TABLE: usize = 16 << 20;
/// Milliseconds between two looks at the requests that wait.
const WATCH: u64 = 5;
/// Milliseconds after the last step within which all requests are answered: those of one connection may wait one after the other.
const DRAIN: u64 = 300_000;
/// Time for the server to notice that clients have left: longer than it lets one not read.
const LEAVE: Duration = Duration::from_secs(15);

/// Runs a plan of a server in one thread and in virtual time.
pub(crate) fn run(plan: &Plan, server: &ServerPlan, output: Output) -> Result<RunOutcome> {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    #[cfg(tokio_unstable)]
    builder
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&plan.seed.to_le_bytes()))
        .on_before_task_poll(|_| super::turn::begin());
    let runtime = builder.build_local(LocalOptions::default()).context("cannot make a runtime")?;
    runtime.block_on(async {
        let mut world = World::new(plan, server, output)?;
        for step in &plan.steps {
            world.watch_until(step.at).await;
            world.take(step);
        }
        world.finish().await;
        let ledger = world.ledger.lock();
        let (hash, events) = ledger.log.summary();
        let violation = ledger.violation.clone();
        Ok(RunOutcome {
            hash,
            events,
            millis: world.time.millis(),
            violation,
        })
    })
}

struct World {
    plan: ServerPlan,
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
    fn new(plan: &Plan, server: &ServerPlan, output: Output) -> Result<Self> {
        let random = Random::new(plan.seed, "server");
        let time = VirtualTime::start();
        clock::start(&random);
        let hash_keys = std::array::from_fn(|_| random.next());
        let store = MemoryStore::with_hash_keys(hash_keys, TABLE, WhenFull::Deny);
        let (mut keys, mut named) = (Vec::new(), Vec::new());
        let rules = Rules::new(&plan.keys, server)?;
        for index in 0..plan.keys.len() {
            named.push((key_name(index), rules.given(index)));
            let (policy, state) = (rules.policy(index)?, OracleSubject::default());
            keys.push(Key { policy, state, ready: None });
        }
        let log = Arc::new(EventLog::new(time, output));
        let mut config = Config::default();
        let Bounds { clients, bytes } = server
            .bounds
            .unwrap_or(Bounds { clients: config.max_clients, bytes: config.max_buffer_memory });
        (config.max_clients, config.max_buffer_memory) = (clients, bytes);
        let ledger = Ledger {
            bounds: Bounds { clients, bytes },
            keys,
            connections: Vec::new(),
            log,
            arrivals: 0,
            is_stopping: false,
            millis: clock::millis,
            violation: None,
        };
        let client = |index| {
            let random = RandomByTime::new(plan.seed, &format!("client {index}"));
            let paused = Rc::new(Cell::new(Instant::now()));
            Client { index, paused, connection: None, link: Link::new(random) }
        };
        Ok(Self {
            plan: server.clone(),
            time,
            server: SimulatedServer::start_with_rules(config, clock::now, store, rules.text())
                .map_err(anyhow::Error::msg)?,
            rules,
            clients: (0..plan.processes).map(client).collect(),
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

    fn take(&mut self, step: &Step) {
        let client = &mut self.clients[step.process];
        if let Some(commands) = Command::of(&step.action) {
            let server = (&self.server, &self.ledger);
            return client.send(server, self.plan.unread, &self.keys, commands);
        }
        match &step.action {
            // They were sent, or `Plan::check` accepts them for others only.
            Action::Request(_)
            | Action::All { .. }
            | Action::Wait { .. }
            | Action::Pipeline { .. }
            | Action::NodeFault { .. }
            | Action::Permit(_)
            | Action::Push { .. }
            | Action::Flood { .. }
            | Action::Revisit { .. } => {}
            &Action::UsePolicy { key, policy } => {
                self.ledger.lock().log.add(format_args!("step: {step}"));
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
            &Action::Reload(rules) => {
                let problem = self.rules.reload(&self.server, rules);
                let mut ledger = self.ledger.lock();
                ledger.log.add(format_args!("step: {step}"));
                if let Some(problem) = problem {
                    ledger.violate(format_args!("rules: {problem}"));
                }
            }
            &Action::Fault { kind, span, amount } => {
                self.ledger.lock().log.add(format_args!("step: {step}"));
                let span = Duration::from_millis(span);
                match kind {
                    FaultKind::CutRequests => client.link.block(Direction::Request, span),
                    FaultKind::CutReplies => client.link.block(Direction::Reply, span),
                    FaultKind::Cut => {
                        client.link.block(Direction::Request, span);
                        client.link.block(Direction::Reply, span);
                    }
                    FaultKind::SlowLink => {
                        let delay = Duration::from_millis(amount.unsigned_abs());
                        client.link.slow_down(delay, span);
                    }
                    FaultKind::ResetLink => client.reset(&self.ledger),
                    FaultKind::LoseLink => {
                        // The client may have left some of them, and the server does not know it yet.
                        self.may_be_lost += client.link.lose();
                        client.leave(&self.ledger);
                    }
                    FaultKind::PauseProcess => client.paused.set(Instant::now() + span),
                    _ => client.leave(&self.ledger),
                }
            }
        }
    }

    /// Lets the requests end, stops the server, and checks that nothing is left.
    async fn finish(&mut self) {
        if !self.plan.stops {
            let end = self.time.millis() + DRAIN;
            let is_idle = || self.ledger.lock().is_idle();
            while !is_idle() && self.time.millis() < end {
                self.watch_until(self.time.millis() + 500).await;
            }
            // The last replies arrive.
            self.watch_until(self.time.millis() + 5000).await;
            self.ledger.lock().check_received();
            self.clients.iter_mut().for_each(|client| client.leave(&self.ledger));
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
