//! The hosts of a run, and what happens to them.

use std::{mem, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use sluicegate_core::{Gcra, Operation, Outcome, PreparedPolicy, Retry, Source};
use sluicegate_holds::HoldId;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    library::Library,
    plan::{Action, FaultKind, Shared, plan},
    process::{DEADLINE, KeyRequest, Process},
};
use crate::{
    check::Checks,
    event_log::{EventLog, Output, RunOutcome},
    network::{Link, LinkFault},
    plan::{self, KeyPlan, Plan, PolicyPlan, Request, Step},
    random::{Random, RandomByTime},
    redis_model::{ARMED, Brand, Policies, RedisModel, Servers},
    run::block_on,
    time::{HostClock, VirtualTime},
};

impl plan::World for Shared {
    type Action = Action;
    const NAME: &str = "shared";

    fn kind(&self) -> &'static str {
        if self.cluster.is_some() { "cluster" } else { "processes" }
    }

    fn processes(&self) -> usize {
        self.processes
    }

    fn check(&self, action: &Action) -> Result<()> {
        let nodes = self.cluster.map_or(0, |it| it.nodes());
        match action {
            Action::Fault { node: Some(node), .. }
            | Action::Link { node: Some(node), .. }
            | Action::MigrateSlot { node, .. } => {
                ensure!(*node < nodes, "unknown node `{node}`");
            }
            Action::Fault { kind, .. } => {
                ensure!(!kind.is_of_cluster(), "expected the node of a cluster");
            }
            Action::Request(requests) => {
                let is_alone = requests.len() == 1 || !requests.iter().any(|it| it.1.is_on_hold());
                ensure!(is_alone, "an operation on a hold is a call of its own");
            }
            _ => {}
        }
        Ok(())
    }

    fn generate(seed: u64, random: &Random) -> Plan<Self> {
        plan(seed, random)
    }

    fn run(plan: &Plan<Self>, output: Output) -> Result<RunOutcome> {
        run(plan, output)
    }

    fn simpler(&self, _: &[KeyPlan]) -> Vec<Self> {
        let fewer = |it: usize| Self { processes: it, ..self.clone() };
        (1..self.processes).map(fewer).collect()
    }
}

/// Runs a plan of processes that share servers.
pub(super) fn run(plan: &Plan<Shared>, output: Output) -> Result<RunOutcome> {
    block_on(plan.seed, || (), async {
        let mut world = World::new(plan, output)?;
        world.take_steps().await?;
        world.recover().await;
        for process in world.closing.iter().chain(&world.processes) {
            process.end();
        }
        world.checks.check_released();
        world.checks.finish();
        let violation = world.checks.take_violation();
        Ok(RunOutcome::new(&world.log, world.time.millis(), violation))
    })?
}

/// A key, its policies, and the index of the one that each process uses.
struct Key {
    name: Vec<u8>,
    policies: Vec<PreparedPolicy>,
    used: Vec<usize>,
}

/// Everything in a run.
struct World<'a> {
    plan: &'a Plan<Shared>,
    time: VirtualTime,
    log: Arc<EventLog>,
    checks: Arc<Checks>,
    servers: Arc<Servers>,
    /// From each process to each server.
    links: Vec<Vec<Arc<Link>>>,
    processes: Vec<Process>,
    /// The library of each process.
    libraries: Vec<Library>,
    /// Libraries whose process has returned its leases; their shapers continue.
    closing_libraries: Vec<Library>,
    keys: Vec<Key>,
    /// Processes that return their leases, and then end.
    closing: Vec<Process>,
    /// Processes started so far.
    starts: u64,
}

impl Key {
    /// The name, and the policy that a process uses.
    fn used_by(&self, process: usize) -> (Vec<u8>, PreparedPolicy) {
        (self.name.clone(), self.policies[self.used[process]].clone())
    }

    fn request(&self, process: usize, request: Request) -> KeyRequest {
        let policy = self.policies[self.used[process]].clone();
        KeyRequest { key: self.name.clone(), policy, request }
    }
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan<Shared>, output: Output) -> Result<Self> {
        let time = VirtualTime::start();
        let log = Arc::new(EventLog::new(&time, output));
        let mut keys = Vec::new();
        let mut policies = Policies::default();
        for (index, key) in plan.keys.iter().enumerate() {
            let prepared: Vec<_> = key.0.iter().map(PolicyPlan::prepare).collect::<Result<_>>()?;
            for policy in &prepared {
                policies.add(policy.policy())?;
            }
            let (name, used) = (name_of(plan, index), vec![0; plan.world.processes]);
            keys.push(Key { name, policies: prepared, used });
        }
        let known = keys.iter().map(|key| (key.name.clone(), key.policies.clone()));
        let checks =
            Checks::new(&time, plan.world.processes, plan.world.denial_cache, DEADLINE, known);
        let checks = Arc::new(checks);
        let servers = servers(plan, &time, policies, (&log, &checks), &keys);
        let links = (0..plan.world.processes).map(|index| links(plan, index)).collect();
        HoldId::seed(Random::new(plan.seed, "holds").next());
        let (processes, libraries) = (Vec::new(), Vec::new());
        let mut world = Self {
            plan,
            time,
            log,
            checks,
            servers,
            links,
            processes,
            libraries,
            closing_libraries: Vec::new(),
            keys,
            closing: Vec::new(),
            starts: 0,
        };
        for index in 0..plan.world.processes {
            let process = world.start(index)?;
            world.libraries.push(Library::new(&process));
            world.processes.push(process);
        }
        Ok(world)
    }

    fn start(&mut self, index: usize) -> Result<Process> {
        self.starts += 1;
        let random = Random::new(self.plan.seed, &format!("process {}", self.starts));
        let denial_cache = Duration::from_millis(self.plan.world.denial_cache);
        let both = (&self.log, &self.checks);
        Process::start(
            (index, self.starts, self.time.clone()),
            &random,
            &self.links[index],
            &self.servers,
            both,
            denial_cache,
        )
    }

    /// The requests of a process on its keys.
    fn requests(&self, process: usize, requests: &[(usize, Request)]) -> Vec<KeyRequest> {
        requests.iter().map(|&(key, it)| self.keys[key].request(process, it)).collect()
    }

    async fn take_steps(&mut self) -> Result<()> {
        let plan = self.plan;
        for step in &plan.steps {
            sleep_until(self.time.at(step.at)).await;
            self.log.add(format_args!("step: {step}"));
            self.act(step)?;
            if self.checks.take_violation().is_some() {
                break;
            }
        }
        Ok(())
    }

    fn act(&mut self, &Step { process, ref action, .. }: &Step<Action>) -> Result<()> {
        match action {
            Action::Request(requests) => {
                self.processes[process].request(self.requests(process, requests), false);
            }
            Action::All(requests) => {
                self.processes[process].request(self.requests(process, requests), true);
            }
            Action::UsePolicy { key, policy } => self.keys[*key].used[process] = *policy,
            &Action::Wait { key, cost, timeout } => {
                let (name, policy) = self.keys[key].used_by(process);
                self.libraries[process].wait(name, policy, cost, timeout);
            }
            &Action::Abandon { key, cost, timeout, after } => {
                let (name, policy) = self.keys[key].used_by(process);
                self.libraries[process].abandon(name, policy, cost, timeout, after);
            }
            &Action::Permit(permit) => {
                let (name, policy) = self.keys[permit.key].used_by(process);
                self.libraries[process].permit(name, policy, permit);
            }
            &Action::Push { key, count } => {
                let (name, policy) = self.keys[key].used_by(process);
                self.libraries[process].push(&name, &policy, count);
            }
            &Action::Link { node, fault, span, amount } => {
                self.checks.disturbed(span);
                for node in self.nodes(node) {
                    self.links[process][node].fail(fault, span, amount);
                    if fault == LinkFault::LoseLink {
                        self.checks.connections_lost(process, node);
                    }
                }
            }
            &Action::Fault { node, kind, span, amount } => {
                // A replica of one shard that takes over leads clients to itself.
                if kind.disturbs() && !(node.is_some() && kind == FaultKind::FailOver) {
                    self.checks.disturbed(span);
                }
                if kind.is_of_process() {
                    return self.fail_process(kind, process, span);
                }
                // All servers fail over at the same time.
                if node.is_none() && kind == FaultKind::FailOver {
                    self.servers.fail_over_all(Duration::from_millis(amount.unsigned_abs()));
                    if !self.servers.is_cluster() {
                        self.links.iter().flatten().for_each(|link| link.reset());
                    }
                    return Ok(());
                }
                self.nodes(node).for_each(|node| self.fail_node(kind, node, span, amount));
            }
            &Action::MigrateSlot { key, node, span } => {
                self.servers.migrate(key, node, Duration::from_millis(span));
            }
        }
        Ok(())
    }

    /// A node, or all.
    fn nodes(&self, node: Option<usize>) -> std::ops::Range<usize> {
        node.map_or(0..self.servers.nodes().count(), |node| node..node + 1)
    }

    fn fail_process(&mut self, kind: FaultKind, process: usize, millis: u64) -> Result<()> {
        if kind == FaultKind::PauseProcess {
            self.checks.paused(process, millis);
            self.processes[process].pause(millis);
            return Ok(());
        }
        if kind == FaultKind::RestartProcess {
            self.processes[process].end();
            self.processes[process] = self.start(process)?;
            self.libraries[process] = Library::new(&self.processes[process]);
            return Ok(());
        }
        self.processes[process].close();
        self.checks.replaced(process);
        let next = self.start(process)?;
        let library = mem::replace(&mut self.libraries[process], Library::new(&next));
        self.closing_libraries.push(library);
        self.closing.push(mem::replace(&mut self.processes[process], next));
        Ok(())
    }

    fn fail_node(&self, kind: FaultKind, node: usize, millis: u64, amount: i64) {
        let span = Duration::from_millis(millis);
        let by = Duration::from_millis(amount.unsigned_abs());
        let server = self.servers.node(node);
        let reset_links = |node: usize| self.links.iter().for_each(|links| links[node].reset());
        match kind {
            FaultKind::PauseServer => server.pause(span),
            FaultKind::RestartServer => {
                self.servers.restart(node, span, by);
                reset_links(node);
            }
            FaultKind::FailOver => self.servers.fail_over(node, by),
            FaultKind::LosePrimary => reset_links(self.servers.lose_primary(node, span, by)),
            FaultKind::StaleMap => self.servers.freeze_map(node, span),
            FaultKind::SlowScript => server.slow_script(span, by),
            FaultKind::FlushScripts => server.flush_scripts(),
            FaultKind::ReadOnly => server.refuse_writes(span),
            FaultKind::OutOfMemory => server.exhaust_memory(span),
            FaultKind::StepClock => self.servers.step_clock(node, amount),
            FaultKind::StopClock => self.servers.stop_clock(node, millis),
            FaultKind::PauseProcess | FaultKind::RestartProcess | FaultKind::CloseProcess => {}
        }
    }
}

/// The name of a key.
fn name_of(plan: &Plan<Shared>, index: usize) -> Vec<u8> {
    let tags = plan.world.cluster.map_or(0, |it| it.tags);
    let tag = index.checked_rem(tags).map(|tag| format!("{{tag{tag}}}")).unwrap_or_default();
    format!("{tag}key{index}").into_bytes()
}

/// The servers of a plan.
fn servers(
    plan: &Plan<Shared>,
    time: &VirtualTime,
    policies: Policies,
    (log, checks): (&Arc<EventLog>, &Arc<Checks>),
    keys: &[Key],
) -> Arc<Servers> {
    let keys = keys.iter().map(|key| key.name.clone()).collect();
    let brand = if plan.seed.is_multiple_of(2) { Brand::Redis } else { Brand::Valkey };
    let policies = Arc::new(policies);
    let model = |clock| {
        RedisModel::new(brand, clock, Arc::clone(&policies), Arc::clone(log), Arc::clone(checks))
    };
    let random = Random::new(plan.seed, "server");
    let Some(cluster) = plan.world.cluster else {
        return Servers::single(model(HostClock::new(time, &random)), keys);
    };
    let clocks = HostClock::of_cluster(time, &random, cluster.nodes());
    Servers::cluster(clocks.into_iter().map(model).collect(), cluster.needs_all, keys)
}

/// The links of a process.
fn links(plan: &Plan<Shared>, process: usize) -> Vec<Arc<Link>> {
    let link = |purpose: String| Link::new(RandomByTime::new(plan.seed, &purpose));
    match plan.world.cluster {
        None => vec![link(format!("link {process}"))],
        Some(cluster) => {
            (0..cluster.nodes()).map(|node| link(format!("link {process} {node}"))).collect()
        }
    }
}

// The end of a run: everything works again.

/// The time after which unused leases have been returned: twice their lifetime.
const LEASES_RETURNED: Duration = Duration::from_secs(2);

/// Milliseconds within which all requests of the library end: their longest timeout, and how long permits are kept.
const IDLE: u64 = 5_000;
/// Milliseconds within which shapers release all that they have: twice what the slowest rate needs for all processes.
const RELEASED: u64 = 400_000;

/// Connections that an idle process sets up one after the other.
const CONNECTIONS: usize = 2;

/// Every seed that is a multiple of this checks how much of the rate of a leased key is used.
const UTILISATION_SEEDS: u64 = 8;
/// The least part of it, in percent.
const MIN_USED_PERCENT: u64 = 95;
/// The measurement takes until the rate has brought this many times the units that leases may hold.
const PARTS: u64 = 20;
/// No key is measured for longer than this.
const MAX_MEASURED: Duration = Duration::from_secs(20);
/// Maximum time between two rounds of requests. Several units come in it, which leases take at once.
const ROUND: Duration = Duration::from_millis(250);
/// Minimum time in which a burst but for its first unit comes back: rounds that come less often than that lose units.
const MIN_BURST_TIME: Duration = Duration::from_millis(300);
/// Time between two checks of tasks that end by themselves.
const POLL: Duration = Duration::from_millis(10);

impl World<'_> {
    /// After the last fault everything works again, and a client that comes back when its denial says so is allowed.
    async fn recover(&mut self) {
        let ends = |step: &Step<Action>| match step.action {
            Action::Fault { kind: FaultKind::SlowScript, .. } => step.at + ARMED,
            Action::Fault { node: Some(_), span, .. } | Action::MigrateSlot { span, .. } => {
                step.at + span
            }
            _ => 0,
        };
        let settled = self.plan.steps.iter().map(ends).max().unwrap_or_default();
        sleep_until(self.time.at(settled)).await;
        sleep_until(self.time.at(self.checks.recovered_at())).await;
        while self.servers.is_migrating() {
            sleep(POLL).await;
        }
        // All processes use the same policies by now, and leases under others have been returned.
        self.keys.iter_mut().for_each(|key| key.used.fill(0));
        let idle_by = self.time.millis() + IDLE;
        let is_idle = |world: &Self| world.all_libraries().all(Library::is_idle);
        while !is_idle(self) && self.time.millis() < idle_by {
            sleep(Duration::from_millis(100)).await;
        }
        if !self.all_libraries().all(Library::is_idle) {
            self.checks.violation(format_args!("liveness: a request of the library does not end"));
        }
        sleep(LEASES_RETURNED).await;
        for (index, process) in self.processes.iter().enumerate() {
            let open = process.open_requests();
            if open > 0 {
                self.checks.violation(format_args!("liveness: {open} requests without an answer"));
            }
            for key in &self.keys {
                let name = key.name.escape_ascii();
                if !self.has_answer(index, key).await {
                    let what = format_args!("liveness: process {index} has no answer for {name}");
                    self.checks.violation(what);
                }
                let is_leased = key.policies[0].settings().lease > 1;
                let take = key.request(index, Request::Take(1));
                if is_leased
                    && process
                        .operate(&take)
                        .await
                        .is_ok_and(|answer| answer.source == Source::Lease)
                {
                    self.checks.violation(format_args!(
                        "liveness: process {index} has a lease of {name} that no request used for {LEASES_RETURNED:?}"
                    ));
                }
            }
            self.check_redirects(index).await;
            let open = process.open_breakers();
            if !open.is_empty() {
                let what = format_args!("liveness: process {index}: breakers of {open:?} are open");
                self.checks.violation(what);
            }
            if let Some(why) = process.unavailable() {
                self.checks.violation(format_args!("liveness: process {index}: {why}"));
            }
        }
        self.check_libraries().await;
        for key in &self.keys {
            self.return_after_denial(key).await;
        }
        self.check_utilisation().await;
    }

    fn all_libraries(&self) -> impl Iterator<Item = &Library> {
        self.libraries.iter().chain(&self.closing_libraries)
    }

    /// By now a process has the node of each slot of a cluster, for one command and for several.
    async fn check_redirects(&self, index: usize) {
        let redirects = self.servers.redirects();
        let peek = |key: &Key| key.request(index, Request::Peek(1));
        if self.servers.is_cluster() {
            for key in &self.keys {
                let _ = self.processes[index].operate(&peek(key)).await;
            }
            let peeks: Vec<_> = self.keys.iter().map(peek).collect();
            self.processes[index].operate_all(&peeks).await;
        }
        if self.servers.redirects() != redirects {
            let what = format_args!(
                "liveness: process {index} sends commands to nodes without their keys"
            );
            self.checks.violation(what);
        }
    }

    /// Whether a process gets an answer of the store. A process that was idle may first have to set up its connections to the
    /// nodes of a cluster: to one for the map, and to that with the key.
    async fn has_answer(&self, index: usize, key: &Key) -> bool {
        let process = &self.processes[index];
        for _ in 0..=CONNECTIONS {
            let sent = self.time.millis();
            let answer = process.operate(&key.request(index, Request::Peek(1))).await;
            if answer.is_ok_and(|answer| answer.source == Source::Store) {
                return true;
            }
            if !self.checks.is_connecting(index, sent) {
                return false;
            }
        }
        false
    }

    /// Holds of permits are settled, and shapers release what they have.
    async fn check_libraries(&self) {
        for library in &self.libraries {
            library.check_permits(self.checks.recovered_at());
        }
        let unreleased = || self.all_libraries().map(Library::unreleased).sum::<usize>();
        // Times that were given before a clock was set back are later by as much.
        let end = self.time.millis().max(self.checks.held_until()) + RELEASED;
        while unreleased() > 0 && self.time.millis() < end {
            sleep(Duration::from_millis(100)).await;
        }
        if unreleased() > 0 {
            let what = format_args!("liveness: shapers keep {} items", unreleased());
            self.checks.violation(what);
        }
    }

    /// Takes until it is denied, and again when the denial says so.
    async fn return_after_denial(&self, key: &Key) {
        let process = &self.processes[0];
        let take = key.request(0, Request::Take(1));
        if key.policies[0].policy().check_operation(Operation::Take(1)).is_err() {
            return;
        }
        for _ in 0..8 {
            let Ok(answer) = process.operate(&take).await else { return };
            let Outcome::Deny { retry: Retry::After(after) } = answer.outcome else { continue };
            if after > Duration::from_mins(1) {
                return;
            }
            // A state from before the clock was set back lasts longer than the denial says.
            let is_held = self.checks.is_held(&key.name);
            // A settle may charge more than was held.
            let is_settling = self.all_libraries().any(|library| library.is_settling(&key.name));
            // The server's clock runs up to 200 parts per million slower, and reads up to a millisecond more in one
            // millisecond than in another.
            sleep(after + after / 5000 + Duration::from_millis(1)).await;
            // A denial from the cache is without what was charged since.
            if answer.source != Source::Store {
                continue;
            }
            let Ok(again) = process.operate(&take).await else { return };
            let is_certain = !is_settling && !is_held && !self.checks.is_held(&key.name);
            if !again.allowed() && is_certain {
                self.checks.violation(format_args!(
                    "honesty: key {} is denied again after {after:?}: {again:?}",
                    key.name.escape_ascii()
                ));
            }
            return;
        }
    }

    /// While all processes request more than there is, as much is admitted as the rate allows.
    async fn check_utilisation(&self) {
        let leased = |key: &&Key| key.policies[0].settings().lease > 1;
        let Some(key) = self.keys.iter().find(leased) else { return };
        let Some(limit) = key.policies[0].policy().as_gcra() else { return };
        let processes = self.processes.len() as u64;
        let held = processes * u64::from(key.policies[0].settings().lease.min(limit.burst()));
        let units = held * PARTS;
        let span = time_of(limit, units);
        let suits =
            span <= MAX_MEASURED && time_of(limit, u64::from(limit.burst()) - 1) >= MIN_BURST_TIME;
        if !suits
            || !self.plan.seed.is_multiple_of(UTILISATION_SEEDS)
            || self.checks.is_held(&key.name)
        {
            return;
        }
        // First, what is there.
        self.take_in_turn(key, 0, u64::from(limit.burst()) + 2 * held).await;
        let rounds = u32::try_from(span.as_micros() / ROUND.as_micros()).unwrap_or(u32::MAX) + 1;
        // All together twice what there is.
        let most = 2 * units / u64::from(rounds) / processes + 1;
        let (mut admitted, begin) = (0, Instant::now());
        for round in 1..=rounds {
            sleep_until(begin + span * round / rounds).await;
            admitted += self.take_in_turn(key, round as usize, most).await;
        }
        if admitted * 100 < units * MIN_USED_PERCENT {
            self.checks.violation(format_args!(
                "liveness: of {units} units of {} {admitted} are used; leases hold {held} at most",
                key.name.escape_ascii()
            ));
        }
    }

    /// Takes by one process after the other, until it is denied or has taken `most` units. Returns how many all have taken.
    async fn take_in_turn(&self, key: &Key, first: usize, most: u64) -> u64 {
        let mut taken = 0;
        for turn in 0..self.processes.len() {
            let index = (first + turn) % self.processes.len();
            for _ in 0..most {
                let answer =
                    self.processes[index].operate(&key.request(index, Request::Take(1))).await;
                if !answer.is_ok_and(|answer| answer.allowed()) {
                    break;
                }
                taken += 1;
            }
        }
        taken
    }
}

/// The time in which this number of units comes.
fn time_of(limit: &Gcra, units: u64) -> Duration {
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    limit.period() * units / limit.limit()
}
