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
    process::{KeyRequest, Process, TakeOfKey},
    random::Random,
    redis_model::{Brand, Policies, RedisModel},
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
    pub(super) server: Arc<RedisModel>,
    pub(super) links: Vec<Arc<Link>>,
    pub(super) processes: Vec<Process>,
    /// What each process uses of the library.
    pub(super) libraries: Vec<Library>,
    /// Those of processes that have returned their leases. Their shapers go on.
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

    pub(super) fn take(&self, process: usize, cost: u32) -> TakeOfKey {
        let policy = self.policies[self.used[process]].clone();
        TakeOfKey { key: self.name.clone(), policy, cost }
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
            let (name, used) = (format!("key{index}").into_bytes(), vec![0; plan.processes]);
            keys.push(Key { name, policies: prepared, used });
        }
        let known = keys.iter().map(|key| (key.name.clone(), key.policies.clone()));
        let checks = Checks::new(time, plan.processes, plan.denial_cache, DEADLINE, known);
        let checks = Arc::new(checks);
        let clock = HostClock::new(time, &Random::new(plan.seed, "server"));
        let brand = if plan.seed.is_multiple_of(2) { Brand::Redis } else { Brand::Valkey };
        let server = RedisModel::new(brand, clock, policies, Arc::clone(&log), Arc::clone(&checks));
        let link = |index| Link::new(Random::new(plan.seed, &format!("link {index}")));
        let links = (0..plan.processes).map(link).collect();
        HoldId::seed(Random::new(plan.seed, "holds").next());
        let (processes, libraries) = (Vec::new(), Vec::new());
        let mut world = Self {
            plan,
            time,
            log,
            checks,
            server,
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
        let link = &self.links[index];
        Process::start(
            (index, self.starts, self.time),
            random,
            link,
            &self.server,
            both,
            denial_cache,
        )
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
                let requests =
                    requests.iter().map(|&(key, it)| self.keys[key].request(process, it)).collect();
                self.processes[process].request(requests);
            }
            Action::Together(operation, takes) => {
                let takes = takes.iter().map(|&(key, cost)| self.keys[key].take(process, cost));
                self.processes[process].request_together(*operation, takes.collect());
            }
            Action::UsePolicy { key, policy } => self.keys[*key].used[process] = *policy,
            &Action::Wait { key, cost, timeout, .. } => {
                let (name, policy) = self.keys[key].used_by(process);
                self.libraries[process].wait(name, policy, cost, timeout);
            }
            &Action::Permit(permit) => {
                let (name, policy) = self.keys[permit.key].used_by(process);
                self.libraries[process].permit(name, policy, permit);
            }
            &Action::Push { key, count } => {
                let (name, policy) = self.keys[key].used_by(process);
                self.libraries[process].push(&name, &policy, count);
            }
            // `Plan::check` accepts these for tables only.
            Action::Flood { .. } | Action::Revisit { .. } => {}
            &Action::Fault { kind, span, amount } => {
                if kind.disturbs() {
                    self.checks.disturbed(span);
                }
                self.inject(kind, process, span, amount)?;
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
        let span = Duration::from_millis(millis);
        let by = Duration::from_millis(amount.unsigned_abs());
        let link = &self.links[process];
        match kind {
            FaultKind::CutRequests => link.block(Direction::Request, span),
            FaultKind::CutReplies => link.block(Direction::Reply, span),
            FaultKind::Cut => {
                link.block(Direction::Request, span);
                link.block(Direction::Reply, span);
            }
            FaultKind::ResetLink => link.reset(),
            FaultKind::LoseLink => link.lose(),
            FaultKind::SlowLink => link.slow_down(by, span),
            FaultKind::PauseServer => self.server.pause(span),
            FaultKind::RestartServer => {
                self.server.restart(span, by);
                self.links.iter().for_each(|link| link.reset());
            }
            FaultKind::FailOver => {
                self.server.fail_over(by);
                self.links.iter().for_each(|link| link.reset());
            }
            FaultKind::FlushScripts => self.server.flush_scripts(),
            FaultKind::ReadOnly => self.server.refuse_writes(span),
            FaultKind::OutOfMemory => self.server.exhaust_memory(span),
            FaultKind::StepClock => {
                let from = self.server.clock.now();
                self.server.step_clock(amount);
                self.checks.clock_stepped(from, self.server.clock.now());
            }
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
                let next = self.start(process)?;
                let library = mem::replace(&mut self.libraries[process], Library::new(&next));
                self.closing_libraries.push(library);
                self.closing.push(mem::replace(&mut self.processes[process], next));
            }
            FaultKind::Save
            | FaultKind::FillDisk
            | FaultKind::FailDisk
            | FaultKind::FailPower
            | FaultKind::Crash
            | FaultKind::Stop
            | FaultKind::Damage => {}
        }
        Ok(())
    }
}
