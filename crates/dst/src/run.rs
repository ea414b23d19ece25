//! One run of a plan.

use std::{
    mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use sluicegate_core::{Operation, Outcome, PreparedPolicy, Retry, Source};
use tokio::time::{sleep, sleep_until};

use crate::{
    check::Checks,
    event_log::{EventLog, Output},
    network::{Direction, Link},
    outcome::RunOutcome,
    plan::{Action, FaultKind, Plan, PolicyPlan, Request, Step},
    process::{KeyRequest, Process, TakeOfKey},
    random::Random,
    redis_model::{Brand, Policies, RedisModel},
    table,
    time::{HostClock, VirtualTime},
};

/// The deadline of an operation, in milliseconds: the default of the store.
const DEADLINE: u64 = 15;

/// The time after which leases that nobody uses have been returned: twice their lifetime.
const LEASES_RETURNED: Duration = Duration::from_secs(2);

/// A key, its policies, and the index of the one that each process uses.
struct Key {
    name: Vec<u8>,
    policies: Vec<PreparedPolicy>,
    used: Vec<usize>,
}

/// Whether a task has panicked, which tokio would pass over.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Makes a panic of a task a violation.
pub(crate) fn watch_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICKED.store(true, Ordering::Relaxed);
        usual(info);
    }));
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
    keys: Vec<Key>,
    /// Processes that return their leases, and then end.
    closing: Vec<Process>,
    /// Processes started so far.
    starts: u64,
}

/// Runs a plan in one thread and in virtual time. A panic is a violation.
pub(crate) fn run(plan: &Plan, output: Output) -> Result<RunOutcome> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| match plan.table {
        Some(table) => table::run(plan, table, output),
        None => run_processes(plan, output),
    }));
    PANICKED.store(false, Ordering::Relaxed);
    outcome.unwrap_or_else(|_| {
        let violation = Some("after 0 ms: panic: see above".to_owned());
        Ok(RunOutcome { violation, ..RunOutcome::default() })
    })
}

/// Runs a plan of processes that share a server.
fn run_processes(plan: &Plan, output: Output) -> Result<RunOutcome> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // Some of tokio's channels wake their receivers in a random order. Without the flag, which `cargo xtask dst` sets,
    // equal seeds may give different runs.
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&plan.seed.to_le_bytes()));
    let runtime = builder.build().context("cannot make a runtime")?;
    runtime.block_on(async {
        let mut world = World::new(plan, output)?;
        world.take_steps().await?;
        world.recover().await;
        for process in world.closing.iter().chain(&world.processes) {
            process.end();
        }
        world.checks.finish();
        if PANICKED.swap(false, Ordering::Relaxed) {
            world.checks.violation(format_args!("panic: see above"));
        }
        let (hash, events) = world.log.summary();
        let violation = world.checks.take_violation();
        let mut recording = world.log.take_recording();
        if output == Output::Picture {
            recording.keys = world.checks.admitted();
        }
        Ok(RunOutcome { hash, events, millis: world.time.millis(), violation, recording })
    })
}

impl Key {
    fn request(&self, process: usize, request: Request) -> KeyRequest {
        let policy = self.policies[self.used[process]].clone();
        KeyRequest { key: self.name.clone(), policy, request }
    }
}

impl Key {
    fn take(&self, process: usize, cost: u32) -> TakeOfKey {
        let policy = self.policies[self.used[process]].clone();
        TakeOfKey { key: self.name.clone(), policy, cost }
    }
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, output: Output) -> Result<Self> {
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
        let processes = Vec::new();
        let mut world = Self {
            plan,
            time,
            log,
            checks,
            server,
            links,
            processes,
            keys,
            closing: Vec::new(),
            starts: 0,
        };
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
        Process::start(
            (index, self.starts, self.time),
            random,
            link,
            &self.server,
            both,
            denial_cache,
        )
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

    fn act(&mut self, &Step { process, ref action, .. }: &Step) -> Result<()> {
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

    fn inject(&mut self, kind: FaultKind, process: usize, millis: u64, amount: i64) -> Result<()> {
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
                self.checks.restarts(process);
                self.processes[process].end();
                self.processes[process] = self.start(process)?;
            }
            FaultKind::CloseProcess => {
                self.checks.restarts(process);
                self.processes[process].close();
                let next = self.start(process)?;
                self.closing.push(mem::replace(&mut self.processes[process], next));
            }
            FaultKind::Save
            | FaultKind::FillDisk
            | FaultKind::Crash
            | FaultKind::Stop
            | FaultKind::Damage => {}
        }
        Ok(())
    }

    /// After the last fault everything works again, and whoever comes back when a denial says so is allowed.
    async fn recover(&mut self) {
        sleep_until(self.time.at(self.checks.recovered_at())).await;
        // All processes use the same policies by now, and leases under others have been returned.
        self.keys.iter_mut().for_each(|key| key.used.fill(0));
        sleep(LEASES_RETURNED).await;
        for (index, process) in self.processes.iter().enumerate() {
            let open = process.open_requests();
            if open > 0 {
                self.checks.violation(format_args!("liveness: {open} requests without an answer"));
            }
            for key in &self.keys {
                let answer = process.ask(&key.request(index, Request::Peek(1))).await;
                if !answer.is_ok_and(|answer| answer.source == Source::Store) {
                    let name = key.name.escape_ascii();
                    let what = format_args!("liveness: process {index} has no answer for {name}");
                    self.checks.violation(what);
                }
            }
            if let Some(why) = process.unavailable() {
                self.checks.violation(format_args!("liveness: process {index}: {why}"));
            }
        }
        for key in &self.keys {
            self.return_when_told(key).await;
        }
    }

    /// Takes until it is denied, and again when the denial says so.
    async fn return_when_told(&self, key: &Key) {
        let process = &self.processes[0];
        let take = key.request(0, Request::Take(1));
        if key.policies[0].policy().check_operation(Operation::Take(1)).is_err() {
            return;
        }
        for _ in 0..8 {
            let Ok(answer) = process.ask(&take).await else { return };
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
            let Ok(again) = process.ask(&take).await else { return };
            if !again.allowed() && !self.checks.is_held() {
                self.checks.violation(format_args!(
                    "honesty: key {} is denied again after {after:?}: {again:?}",
                    key.name.escape_ascii()
                ));
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Scripts that have shown a bug, which has been fixed.
    #[test]
    fn kept_scripts_violate_nothing() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert!(names.len() >= 4, "{names:?}");
        for name in names {
            let plan: Plan = fs::read_to_string(&name).unwrap().parse().unwrap();
            let outcome = run(&plan, Output::Nothing).unwrap();
            assert_eq!(outcome.violation, None, "{}", name.display());
            assert!(outcome.events >= plan.steps.len() as u64, "{}", name.display());
        }
    }
}
