//! One run of a plan.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use sluicegate_core::{Outcome, PreparedPolicy, Retry, Source};
use tokio::time::{sleep, sleep_until};

use crate::{
    check::Checks,
    event_log::EventLog,
    network::{Direction, Link},
    plan::{Action, Plan, Request},
    process::Process,
    random::Random,
    redis_model::{Policies, RedisModel},
    time::{HostClock, VirtualTime},
};

/// The deadline of an operation, in milliseconds: the default of the store.
const DEADLINE: u64 = 15;

/// What came out of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunOutcome {
    /// The hash of all events, and their number.
    pub(crate) hash: u64,
    pub(crate) events: u64,
    /// How long it took, in milliseconds of virtual time.
    pub(crate) millis: u64,
    /// What did not hold.
    pub(crate) violation: Option<String>,
}

/// Everything in a run.
struct World<'a> {
    plan: &'a Plan,
    time: VirtualTime,
    log: Arc<EventLog>,
    checks: Arc<Checks>,
    server: Arc<RedisModel>,
    links: Vec<Arc<Link>>,
    processes: Vec<Process>,
    keys: Vec<(Vec<u8>, PreparedPolicy)>,
    /// Processes started so far.
    starts: u64,
}

/// Runs a plan in one thread and in virtual time.
pub(crate) fn run(plan: &Plan, prints: bool) -> Result<RunOutcome> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // Some of tokio's channels wake their receivers in a random order. Without the flag, which `cargo xtask dst` sets,
    // equal seeds may give different runs.
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&plan.seed.to_le_bytes()));
    let runtime = builder.build().context("cannot make a runtime")?;
    runtime.block_on(async {
        let mut world = World::new(plan, prints)?;
        world.take_steps().await?;
        world.recover().await;
        for process in &world.processes {
            process.end();
        }
        world.checks.finish();
        let (hash, events) = world.log.summary();
        let violation = world.checks.take_violation();
        Ok(RunOutcome { hash, events, millis: world.time.millis(), violation })
    })
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, prints: bool) -> Result<Self> {
        let time = VirtualTime::start();
        let log = Arc::new(EventLog::new(time, prints));
        let mut keys = Vec::new();
        let mut policies = Policies::default();
        for (index, key) in plan.keys.iter().enumerate() {
            let policy = key.prepare()?;
            policies.add(policy.policy())?;
            keys.push((format!("key{index}").into_bytes(), policy));
        }
        let deadlines = (plan.denial_cache, DEADLINE);
        let checks =
            Checks::new(time, plan.processes, deadlines.0, deadlines.1, keys.iter().cloned());
        let checks = Arc::new(checks);
        let clock = HostClock::new(time, &Random::new(plan.seed, "server"));
        let server = RedisModel::new(clock, policies, Arc::clone(&log), Arc::clone(&checks));
        let link = |index| Link::new(Random::new(plan.seed, &format!("link {index}")));
        let links = (0..plan.processes).map(link).collect();
        let processes = Vec::new();
        let mut world = Self { plan, time, log, checks, server, links, processes, keys, starts: 0 };
        for index in 0..plan.processes {
            let process = world.start(index)?;
            world.processes.push(process);
        }
        Ok(world)
    }

    fn start(&mut self, index: usize) -> Result<Process> {
        self.starts += 1;
        let random = Random::new(self.plan.seed, &format!("process {}", self.starts));
        let denial_cache = Duration::from_millis(self.plan.denial_cache);
        let both = (&self.log, &self.checks);
        let link = &self.links[index];
        Process::start((index, self.time), random, link, &self.server, both, denial_cache)
    }

    async fn take_steps(&mut self) -> Result<()> {
        let plan = self.plan;
        for step in &plan.steps {
            sleep_until(self.time.at(step.at)).await;
            self.log.add(format_args!("step: {step}"));
            if let Some(span) = step.action.disturbs_for() {
                self.checks.disturbed(span);
            }
            self.act(&step.action)?;
            if self.checks.take_violation().is_some() {
                break;
            }
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<()> {
        let span = |millis: u64| Duration::from_millis(millis);
        match *action {
            Action::Request { process, key, request } => {
                let (name, policy) = self.keys[key].clone();
                self.processes[process].request(name, policy, request);
            }
            Action::CutRequests { process, span: millis } => {
                self.links[process].block(Direction::Request, span(millis));
            }
            Action::CutReplies { process, span: millis } => {
                self.links[process].block(Direction::Reply, span(millis));
            }
            Action::Cut { process, span: millis } => {
                self.links[process].block(Direction::Request, span(millis));
                self.links[process].block(Direction::Reply, span(millis));
            }
            Action::ResetLink { process } => self.links[process].reset(),
            Action::LoseLink { process } => self.links[process].lose(),
            Action::Slow { process, delay, span: millis } => {
                self.links[process].slow_down(span(delay), span(millis));
            }
            Action::PauseServer { span: millis } => self.server.pause(span(millis)),
            Action::RestartServer { span: millis, lost } => {
                self.server.restart(span(millis), span(lost));
                self.links.iter().for_each(|link| link.reset());
            }
            Action::Failover { lost } => {
                self.server.fail_over(span(lost));
                self.links.iter().for_each(|link| link.reset());
            }
            Action::FlushScripts => self.server.flush_scripts(),
            Action::ReadOnly { span: millis } => self.server.refuse_writes(span(millis)),
            Action::OutOfMemory { span: millis } => self.server.exhaust_memory(span(millis)),
            Action::StepClock { by } => {
                self.server.step_clock(by);
                self.checks.clock_stepped();
            }
            Action::PauseProcess { process, span: millis } => self.processes[process].pause(millis),
            Action::RestartProcess { process } => {
                self.processes[process].end();
                self.processes[process] = self.start(process)?;
            }
        }
        Ok(())
    }

    /// After the last fault everything works again, and whoever comes back when a denial says so is allowed.
    async fn recover(&mut self) {
        sleep_until(self.time.at(self.checks.recovered_at())).await;
        sleep(Duration::from_millis(DEADLINE * 2)).await;
        for (index, process) in self.processes.iter().enumerate() {
            let open = process.open_requests();
            if open > 0 {
                self.checks.violation(format_args!("liveness: {open} requests without an answer"));
            }
            for (key, policy) in &self.keys {
                let answer = process.ask(key, policy, Request::Peek(1)).await;
                if !answer.is_ok_and(|answer| answer.source == Source::Store) {
                    let name = key.escape_ascii();
                    let what = format_args!("liveness: process {index} has no answer for {name}");
                    self.checks.violation(what);
                }
            }
            if let Some(why) = process.unavailable() {
                self.checks.violation(format_args!("liveness: process {index}: {why}"));
            }
        }
        for (key, policy) in &self.keys {
            self.return_when_told(key, policy).await;
        }
    }

    /// Takes until it is denied, and again when the denial says so.
    async fn return_when_told(&self, key: &[u8], policy: &PreparedPolicy) {
        let process = &self.processes[0];
        for _ in 0..8 {
            let Ok(answer) = process.ask(key, policy, Request::Take(1)).await else { return };
            let Outcome::Deny { retry: Retry::After(after) } = answer.outcome else { continue };
            if after > Duration::from_mins(1) {
                return;
            }
            // Clocks differ by up to 400 parts per million.
            sleep(after + after / 1000 + Duration::from_millis(3)).await;
            // A denial from the cache does not know what was charged since.
            if answer.source != Source::Store {
                continue;
            }
            let Ok(again) = process.ask(key, policy, Request::Take(1)).await else { return };
            if !again.allowed() {
                self.checks.violation(format_args!(
                    "honesty: key {} is denied again after {after:?}: {again:?}",
                    key.escape_ascii()
                ));
            }
            return;
        }
    }
}
