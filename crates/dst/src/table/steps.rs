//! The steps of a run: requests, snapshots and restarts.

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use sluicegate_core::Timestamp;
use sluicegate_server::simulation::read_state_file;

use super::{
    disk::{Off, STATE_FILE},
    flood::Flood,
    world::{TableWorld, empty},
};
use crate::{
    event_log::Output,
    outcome::RunOutcome,
    plan::{Action, FaultKind, Plan, PolicyPlan, Request, Step, TablePlan},
};

/// Runs a plan of a table.
pub(crate) fn run(plan: &Plan, table: TablePlan, output: Output) -> Result<RunOutcome> {
    let mut world = TableWorld::new(plan, table, output)?;
    while world.next < plan.steps.len() && world.violation.is_none() {
        world.take_step()?;
        // The states of a key double with each batch that finds the table full.
        if world.keys.iter().any(|key| key.states.are_too_many()) {
            world.note(format_args!("ends: a key may have too many states"));
            break;
        }
    }
    world.finish();
    let (hash, events) = world.log.summary();
    Ok(RunOutcome { hash, events, millis: world.millis, violation: world.violation })
}

impl TableWorld<'_> {
    pub(super) fn take_step(&mut self) -> Result<()> {
        let plan = self.plan;
        let step = &plan.steps[self.next];
        self.next += 1;
        if step.at != self.millis {
            (self.millis, self.readings) = (step.at, 0);
        }
        if !matches!(step.action, Action::Request(_)) {
            self.note(format_args!("step: {step}"));
        }
        self.act(step)
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        match &step.action {
            Action::Request(requests) => self.request(requests),
            // `Plan::check` accepts these for processes only.
            Action::All { .. }
            | Action::Wait { .. }
            | Action::NodeFault { .. }
            | Action::Permit(_)
            | Action::Reload(_)
            | Action::Push { .. }
            | Action::Pipeline { .. } => {}
            Action::UsePolicy { key, policy } => self.keys[*key].used = *policy,
            Action::Flood { key, count } => self.flood(*key, *count),
            Action::Revisit { flood, first, count } => self.revisit(*flood, *first, *count),
            &Action::Fault { kind, amount, .. } => match kind {
                FaultKind::StepClock => self.step += amount * 1000,
                FaultKind::Save => self.save(usize::try_from(amount).unwrap_or_default())?,
                FaultKind::FillDisk => {
                    self.disk.fill(usize::try_from(amount).unwrap_or_default() << 10);
                }
                FaultKind::FailDisk => self.disk.fail_in(amount.unsigned_abs()),
                FaultKind::FailPower if amount > 0 => {
                    self.disk.fail_power_in(amount.unsigned_abs());
                }
                FaultKind::FailPower => self.restart(0, End::Power)?,
                FaultKind::Stop => {
                    self.save(0)?;
                    self.restart(amount, End::Process)?;
                }
                FaultKind::Damage => self.restart(0, End::Damage(amount))?,
                _ => self.restart(amount, End::Process)?,
            },
        }
        Ok(())
    }

    /// Looks at every key once more.
    fn finish(&mut self) {
        for index in 0..self.keys.len() {
            self.request_one(index, Request::Peek(1));
        }
    }
}

// The state file of a table: while a snapshot is written, other things happen.

/// Damage to the file as the process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing.
    Process,
    /// The power fails as well, so that what was not synced is lost in part.
    Power,
    /// It is cut by this number of bytes, or one of its bits changes if that is 0.
    Damage(i64),
}

impl TableWorld<'_> {
    /// Writes a snapshot, and takes the next `steps` while it does.
    pub(super) fn save(&mut self, steps: usize) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let (now, store) = (self.now(), Arc::clone(&self.store));
        self.is_saving = true;
        self.keys.iter_mut().for_each(|key| key.states.begin_save());
        self.floods.iter_mut().for_each(Flood::begin_save);
        let before = self.disk.number(Path::new(STATE_FILE));
        let every = 1 + self.random.below(1 << self.random.below(12));
        let mut left = steps;
        let saved = file.replace(|out| {
            let next = || self.step_while_saving(&mut left);
            store.save(InterleavedWriter { out, next: Some(next), every, writes: 0 }, now)
        });
        self.file = Some(file);
        self.is_saving = false;
        let is_replaced = self.disk.number(Path::new(STATE_FILE)) != before;
        self.note(format_args!("saved: {saved:?}; {:?}", store.usage()));
        match saved {
            Ok(_) => {
                (self.saved_max_bytes, self.is_set_back) = (self.table.max_bytes, false);
                self.keys.iter_mut().for_each(|key| key.states.end_save());
                self.floods.iter_mut().for_each(Flood::end_save);
            }
            Err(_) if is_replaced => {
                self.saved_max_bytes = self.saved_max_bytes.max(self.table.max_bytes);
                self.keys.iter_mut().for_each(|key| key.states.may_end_save());
                self.floods.iter_mut().for_each(Flood::may_end_save);
            }
            Err(_) => {}
        }
        match self.disk.off() {
            None => self.check_names("after a snapshot"),
            // The next step starts it again.
            Some(Off::Process) => {}
            Some(Off::Power) => self.restart(0, End::Power)?,
        }
        Ok(())
    }

    /// Takes the next of `left` steps, unless it ends the process, which ends the snapshot. Whether another may follow.
    fn step_while_saving(&mut self, left: &mut usize) -> io::Result<bool> {
        if *left == 0 {
            return Ok(false);
        }
        *left -= 1;
        let next = self.plan.steps.get(self.next);
        match next.map(|step| &step.action) {
            Some(Action::Fault {
                kind: FaultKind::Crash | FaultKind::FailPower | FaultKind::Damage,
                ..
            }) => {
                self.disk.turn_off(Off::Process);
                Err(io::Error::other("the process ends"))
            }
            // One snapshot at a time.
            None | Some(Action::Fault { kind: FaultKind::Save | FaultKind::Stop, .. }) => Ok(false),
            Some(_) => self.take_step().map(|()| true).map_err(io::Error::other),
        }
    }

    /// The process ends, and starts again from its file. The bound of its table is then `kib` KiB; 0: as before.
    pub(super) fn restart(&mut self, kib: i64, end: End) -> Result<()> {
        if self.step < 0 {
            self.is_set_back = true;
            for key in &mut self.keys {
                let policies: Vec<_> = key.policies.iter().map(|it| it.policy()).collect();
                key.states.forget_recovered(&policies, self.latest);
            }
            self.floods.iter_mut().for_each(|flood| flood.forget_recovered(self.latest));
        }
        self.offset += std::mem::take(&mut self.step);
        self.latest = Timestamp::EPOCH;
        let max_bytes = usize::try_from(kib).unwrap_or_default() << 10;
        if max_bytes > 0 {
            self.table.max_bytes = max_bytes;
        }
        let now = self.now();
        self.disk.turn_off(if end == End::Power { Off::Power } else { Off::Process });
        self.file = None;
        self.disk.start_process();
        if let End::Damage(cut) = end {
            self.damage(cut);
        }
        self.file = Some(self.disk.open_state_file()?);
        let found = self.disk.number(Path::new(STATE_FILE));
        let is_damaged = found.is_some_and(|it| self.damaged.contains(&it));
        let read = |world: &Self| {
            let TablePlan { max_bytes, when_full } = world.table;
            read_state_file(&world.disk, Path::new(STATE_FILE), now, max_bytes, when_full)
        };
        let mut loaded = read(self);
        if loaded.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput) {
            if self.table.max_bytes >= self.saved_max_bytes && !self.is_set_back {
                self.violate(format_args!("exactness: the file does not fit into as much memory"));
            }
            // The operator raises the bound. A clock that was set back needs more than the keys did.
            self.table.max_bytes = 2 * self.saved_max_bytes.max(self.table.max_bytes);
            loaded = read(self);
        }
        let loaded = loaded.context("cannot read the state file")?;
        if loaded.is_some() && is_damaged {
            self.violate(format_args!("exactness: a damaged file was read"));
        }
        if loaded.is_none() && found.is_some() && !is_damaged {
            self.violate(format_args!("exactness: a whole file was not read"));
        }
        self.check_names("after a start");
        self.store = Arc::new(loaded.unwrap_or_else(|| empty(&self.random, self.table)));

        let usage = self.store.usage();
        self.note(format_args!("started with {usage:?}"));
        for (key, plan) in self.keys.iter_mut().zip(&self.plan.keys) {
            // Policies belong to the store that used them first.
            key.policies = plan.0.iter().map(PolicyPlan::prepare).collect::<Result<_>>()?;
            key.states.restart(is_damaged);
        }
        self.floods.iter_mut().for_each(|flood| flood.restart(is_damaged));
        self.check_bounds();
        Ok(())
    }

    /// Damages the file, if there is one.
    fn damage(&mut self, cut: i64) {
        self.damaged.extend(self.disk.number(Path::new(STATE_FILE)));
        self.disk.damage(Path::new(STATE_FILE), |bytes| match usize::try_from(cut) {
            Ok(cut @ 1..) => bytes.truncate(bytes.len().saturating_sub(cut)),
            _ => {
                let index = self.random.index(bytes.len());
                bytes[index] ^= 1 << self.random.below(8);
            }
        });
    }

    /// No snapshot is left that is incomplete.
    fn check_names(&mut self, when: &str) {
        if let Some(name) = self.disk.leftover() {
            self.violate(format_args!("bounds: {} is left {when}", name.display()));
        }
    }
}

/// Writes to `out`; at every `every`th write, something else happens before it, for as long as `next` returns true.
struct InterleavedWriter<W, F> {
    out: W,
    next: Option<F>,
    every: u64,
    writes: u64,
}

impl<W: Write, F: FnMut() -> io::Result<bool>> Write for InterleavedWriter<W, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.writes.is_multiple_of(self.every)
            && let Some(next) = &mut self.next
            && !next()?
        {
            self.next = None;
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
