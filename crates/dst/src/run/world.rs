//! The hosts of a run, and what happens to them.

use std::{mem, sync::Arc, time::Duration};

use anyhow::Result;
use sluicegate_core::PreparedPolicy;
use sluicegate_holds::HoldId;
use tokio::time::sleep_until;

use crate::{
    check::Checks,
    event_log::{EventLog, Output},
    library::Library,
    network::{Direction, Link},
    plan::{Action, FaultKind, Plan, PolicyPlan, Request, Step},
    process::{KeyRequest, Process},
    random::{Random, RandomByTime},
    redis_model::{Brand, Policies, RedisModel, Servers},
    time::{HostClock, VirtualTime},
};

/// The deadline of an operation, in milliseconds: the default of the store.
const DEADLINE: u64 = 15;

/// A key, its policies, and the index of the one that each process uses.
pub(super) struct Key {
    pub(super) name: Vec<u8>,
    pub(super) policies: Vec<PreparedPolicy>,
    pub(super) used: Vec<usize>,
}

/// Everything in a run.
pub(super) struct World<'a> {
    pub(super) plan: &'a Plan,
    pub(super) time: VirtualTime,
    pub(super) log: Arc<EventLog>,
    pub(super) checks: Arc<Checks>,
    pub(super) servers: Arc<Servers>,
    /// From each process to each server.
    pub(super) links: Vec<Vec<Arc<Link>>>,
    pub(super) processes: Vec<Process>,
    /// The library of each process.
    pub(super) libraries: Vec<Library>,
    /// Libraries whose process has returned its leases; their shapers continue.
    pub(super) closing_libraries: Vec<Library>,
    pub(super) keys: Vec<Key>,
    /// Processes that return their leases, and then end.
    pub(super) closing: Vec<Process>,
    /// Processes started so far.
    pub(super) starts: u64,
}

impl Key {
    /// The name, and the policy that a process uses.
    fn used_by(&self, process: usize) -> (Vec<u8>, PreparedPolicy) {
        (self.name.clone(), self.policies[self.used[process]].clone())
    }

    pub(super) fn request(&self, process: usize, request: Request) -> KeyRequest {
        let policy = self.policies[self.used[process]].clone();
        KeyRequest { key: self.name.clone(), policy, request }
    }
}

impl<'a> World<'a> {
    pub(super) fn new(plan: &'a Plan, output: Output) -> Result<Self> {
        let time = VirtualTime::start();
        let log = Arc::new(EventLog::new(time, output));
        let mut keys = Vec::new();
        let mut policies = Policies::default();
        for (index, key) in plan.keys.iter().enumerate() {
            let prepared: Vec<_> = key.0.iter().map(PolicyPlan::prepare).collect::<Result<_>>()?;
            for policy in &prepared {
                policies.add(policy.policy())?;
            }
            let (name, used) = (name_of(plan, index), vec![0; plan.processes]);
            keys.push(Key { name, policies: prepared, used });
        }
        let known = keys.iter().map(|key| (key.name.clone(), key.policies.clone()));
        let checks = Checks::new(time, plan.processes, plan.denial_cache, DEADLINE, known);
        let checks = Arc::new(checks);
        let servers = servers(plan, time, policies, (&log, &checks), &keys);
        let links = (0..plan.processes).map(|index| links(plan, index)).collect();
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
        for index in 0..plan.processes {
            let process = world.start(index)?;
            world.libraries.push(Library::new(&process));
            world.processes.push(process);
        }
        Ok(world)
    }

    pub(super) fn start(&mut self, index: usize) -> Result<Process> {
        self.starts += 1;
        let random = Random::new(self.plan.seed, &format!("process {}", self.starts));
        let denial_cache = Duration::from_millis(self.plan.denial_cache);
        let both = (&self.log, &self.checks);
        Process::start(
            (index, self.starts, self.time),
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

    pub(super) async fn take_steps(&mut self) -> Result<()> {
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

    pub(super) fn act(&mut self, &Step { process, ref action, .. }: &Step) -> Result<()> {
        match action {
            Action::Request(requests) => {
                self.processes[process].request(self.requests(process, requests), false);
            }
            Action::All { requests, .. } => {
                self.processes[process].request(self.requests(process, requests), true);
            }
            Action::UsePolicy { key, policy } => self.keys[*key].used[process] = *policy,
            &Action::Wait { key, request, timeout } => {
                let (name, policy) = self.keys[key].used_by(process);
                self.libraries[process].wait(name, policy, request.cost(), timeout);
            }
            &Action::Permit(permit) => {
                let (name, policy) = self.keys[permit.key].used_by(process);
                self.libraries[process].permit(name, policy, permit);
            }
            &Action::Push { key, count } => {
                let (name, policy) = self.keys[key].used_by(process);
                self.libraries[process].push(&name, &policy, count);
            }
            // `Plan::check` accepts these for tables and servers only.
            Action::Flood { .. }
            | Action::Revisit { .. }
            | Action::Pipeline { .. }
            | Action::Reload(_) => {}
            &Action::Fault { kind, span, amount } => {
                if kind.disturbs() {
                    self.checks.disturbed(span);
                }
                self.inject(kind, process, span, amount)?;
            }
            &Action::NodeFault { node, kind, span, amount } => {
                // A replica that takes over leads clients to itself.
                if kind.disturbs() && kind != FaultKind::FailOver {
                    self.checks.disturbed(span);
                }
                self.inject_at(node, kind, process, span, amount);
            }
        }
        Ok(())
    }

    pub(super) fn inject(
        &mut self,
        kind: FaultKind,
        process: usize,
        millis: u64,
        amount: i64,
    ) -> Result<()> {
        match kind {
            FaultKind::PauseProcess => {
                self.checks.paused(process, millis);
                self.processes[process].pause(millis);
            }
            FaultKind::RestartProcess => {
                self.processes[process].end();
                self.processes[process] = self.start(process)?;
                self.libraries[process] = Library::new(&self.processes[process]);
            }
            FaultKind::CloseProcess => {
                self.processes[process].close();
                self.checks.replaced(process);
                let next = self.start(process)?;
                let library = mem::replace(&mut self.libraries[process], Library::new(&next));
                self.closing_libraries.push(library);
                self.closing.push(mem::replace(&mut self.processes[process], next));
            }
            // All servers fail over at the same time, or step their clocks by as much.
            FaultKind::FailOver => {
                self.servers.fail_over_all(Duration::from_millis(amount.unsigned_abs()));
                if !self.servers.is_cluster() {
                    self.links.iter().flatten().for_each(|link| link.reset());
                }
            }
            _ => {
                for node in 0..self.servers.nodes().count() {
                    self.inject_at(node, kind, process, millis, amount);
                }
            }
        }
        Ok(())
    }

    /// Something goes wrong with a node, or between it and a process.
    fn inject_at(&self, node: usize, kind: FaultKind, process: usize, millis: u64, amount: i64) {
        let span = Duration::from_millis(millis);
        let by = Duration::from_millis(amount.unsigned_abs());
        let (link, server) = (&self.links[process][node], self.servers.node(node));
        let reset_links = || self.links.iter().for_each(|links| links[node].reset());
        match kind {
            FaultKind::CutRequests => link.block(Direction::Request, span),
            FaultKind::CutReplies => link.block(Direction::Reply, span),
            FaultKind::Cut => {
                link.block(Direction::Request, span);
                link.block(Direction::Reply, span);
            }
            FaultKind::ResetLink => link.reset(),
            FaultKind::LoseLink => {
                link.lose();
                self.checks.connections_lost(process, node);
            }
            FaultKind::SlowLink => link.slow_down(by, span),
            FaultKind::PauseServer => server.pause(span),
            FaultKind::RestartServer => {
                self.servers.restart(node, span, by);
                reset_links();
            }
            FaultKind::FailOver => self.servers.fail_over(node, by),
            FaultKind::LosePrimary => {
                let primary = self.servers.lose_primary(node, span, by);
                self.links.iter().for_each(|links| links[primary].reset());
            }
            FaultKind::MigrateSlot => {
                let key = usize::try_from(amount).unwrap_or_default();
                self.servers.migrate(key, node, span);
            }
            FaultKind::StaleMap => self.servers.freeze_map(node, span),
            FaultKind::SlowScript => server.slow_script(span, by),
            FaultKind::FlushScripts => server.flush_scripts(),
            FaultKind::ReadOnly => server.refuse_writes(span),
            FaultKind::OutOfMemory => server.exhaust_memory(span),
            FaultKind::StepClock => self.servers.step_clock(node, amount),
            FaultKind::StopClock => self.servers.stop_clock(node, millis),
            FaultKind::PauseProcess
            | FaultKind::RestartProcess
            | FaultKind::CloseProcess
            | FaultKind::Save
            | FaultKind::FillDisk
            | FaultKind::FailDisk
            | FaultKind::FailPower
            | FaultKind::Crash
            | FaultKind::Stop
            | FaultKind::Damage => {}
        }
    }
}

/// The name of a key.
fn name_of(plan: &Plan, index: usize) -> Vec<u8> {
    let tags = plan.cluster.map_or(0, |it| it.tags);
    let tag = index.checked_rem(tags).map(|tag| format!("{{tag{tag}}}")).unwrap_or_default();
    format!("{tag}key{index}").into_bytes()
}

/// The servers of a plan.
fn servers(
    plan: &Plan,
    time: VirtualTime,
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
    let Some(cluster) = plan.cluster else {
        return Servers::single(model(HostClock::new(time, &random)), keys);
    };
    let clocks = HostClock::of_cluster(time, &random, cluster.nodes());
    Servers::cluster(clocks.into_iter().map(model).collect(), cluster.needs_all, keys)
}

/// The links of a process.
fn links(plan: &Plan, process: usize) -> Vec<Arc<Link>> {
    let link = |purpose: String| Link::new(RandomByTime::new(plan.seed, &purpose));
    match plan.cluster {
        None => vec![link(format!("link {process}"))],
        Some(cluster) => {
            (0..cluster.nodes()).map(|node| link(format!("link {process} {node}"))).collect()
        }
    }
}
