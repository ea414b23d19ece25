//! The steps of a run: requests, snapshots and restarts.

use std::{io, io::Cursor, sync::Arc};

use anyhow::Result;
use sluicegate_conformance::OracleSubject;
use sluicegate_core::Timestamp;
use sluicegate_memory::{MemoryStore, WhenFull};

use super::{
    file::FileWriter,
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
    let recording = world.log.take_recording();
    Ok(RunOutcome { hash, events, millis: world.millis, violation: world.violation, recording })
}

impl TableWorld<'_> {
    fn take_step(&mut self) -> Result<()> {
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
            Action::Together(..)
            | Action::Wait { .. }
            | Action::Permit(_)
            | Action::Push { .. } => {}
            Action::UsePolicy { key, policy } => self.keys[*key].used = *policy,
            Action::Flood { key, count } => self.flood(*key, *count),
            Action::Revisit { flood, first, count } => self.revisit(*flood, *first, *count),
            &Action::Fault { kind, amount, .. } => match kind {
                FaultKind::StepClock => self.step += amount * 1000,
                FaultKind::Save => self.save(usize::try_from(amount).unwrap_or_default()),
                FaultKind::FillDisk => {
                    self.space = Some(usize::try_from(amount).unwrap_or_default() << 10);
                }
                FaultKind::Stop => {
                    self.save(0);
                    self.restart(amount, false)?;
                }
                FaultKind::Damage => {
                    self.damage(amount);
                    self.restart(0, true)?;
                }
                _ => self.restart(amount, false)?,
            },
        }
        Ok(())
    }

    /// Writes a snapshot, and takes the next `steps` meanwhile.
    fn save(&mut self, steps: usize) {
        let (now, store) = (self.now(), Arc::clone(&self.store));
        self.is_saving = true;
        self.keys.iter_mut().for_each(|key| key.states.begin_save());
        self.floods.iter_mut().for_each(Flood::begin_save);
        let (random, space) = (self.random.clone(), self.space.take().unwrap_or(usize::MAX));
        let mut left = steps;
        let mut meanwhile = || self.step_while_saving(&mut left);
        let mut file = FileWriter::new(random, space, &mut meanwhile);
        let saved = store.save(&mut file, now);
        let bytes = file.finish();
        self.is_saving = false;
        match saved {
            Ok(keys) => {
                self.note(format_args!(
                    "saved {keys} keys in {} bytes: {:?}",
                    bytes.len(),
                    store.usage()
                ));
                (self.file, self.saved_max_bytes) = (Some(bytes), self.table.max_bytes);
                self.is_set_back = false;
                self.keys.iter_mut().for_each(|key| key.states.end_save());
                self.floods.iter_mut().for_each(Flood::end_save);
            }
            Err(error) => self.note(format_args!("the snapshot fails: {error}")),
        }
    }

    /// Takes the next of `left` steps, unless it ends the process, which ends the snapshot. Whether another may follow.
    fn step_while_saving(&mut self, left: &mut usize) -> io::Result<bool> {
        if *left == 0 {
            return Ok(false);
        }
        *left -= 1;
        let next = self.plan.steps.get(self.next);
        match next.map(|step| &step.action) {
            Some(Action::Fault { kind: FaultKind::Crash | FaultKind::Damage, .. }) => {
                Err(io::Error::other("the process ends"))
            }
            // One snapshot at a time.
            None | Some(Action::Fault { kind: FaultKind::Save | FaultKind::Stop, .. }) => Ok(false),
            Some(_) => self.take_step().map(|()| true).map_err(io::Error::other),
        }
    }

    /// Cuts the file, or changes one of its bits.
    fn damage(&mut self, cut: i64) {
        let Some(file) = &mut self.file else { return };
        match usize::try_from(cut) {
            Ok(cut @ 1..) => file.truncate(file.len().saturating_sub(cut)),
            _ => {
                let index = self.random.index(file.len());
                file[index] ^= 1 << self.random.below(8);
            }
        }
    }

    /// The process starts again, from its file.
    fn restart(&mut self, kib: i64, is_damaged: bool) -> Result<()> {
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
        let TablePlan { max_bytes, when_full } = self.table;
        let loaded = self.file.take().map(|file| {
            let store = MemoryStore::load(Cursor::new(&file), now, max_bytes, when_full);
            (store, file)
        });
        let is_lost = match loaded {
            Some((Ok(store), file)) => {
                if is_damaged {
                    self.violate(format_args!("exactness: a damaged file was read"));
                }
                self.store = Arc::new(store);
                self.file = Some(file);
                false
            }
            Some((Err(error), _)) => {
                if !is_damaged {
                    self.violate(format_args!("exactness: a whole file was not read: {error}"));
                }
                self.store = Arc::new(empty(&self.random, self.table));
                true
            }
            None => {
                self.store = Arc::new(empty(&self.random, self.table));
                true
            }
        };
        let usage = self.store.usage();
        self.note(format_args!("started with {usage:?}"));
        if usage.keys_dropped > 0 && max_bytes >= self.saved_max_bytes && !self.is_set_back {
            let dropped = usage.keys_dropped;
            self.violate(format_args!("exactness: {dropped} keys are dropped in as much memory"));
        }
        // Those that were dropped earlier are in the file as well.
        self.is_reduced = !is_lost && (self.is_reduced || usage.keys_dropped > 0);
        let may_forget = self.is_reduced && when_full == WhenFull::Allow;
        for (key, plan) in self.keys.iter_mut().zip(&self.plan.keys) {
            // Policies belong to the store that used them first.
            key.policies = plan.0.iter().map(PolicyPlan::prepare).collect::<Result<_>>()?;
            key.states.restart(is_lost);
            if may_forget {
                key.states.add(OracleSubject::default(), false);
            }
        }
        self.floods.iter_mut().for_each(|flood| flood.restart(is_lost, may_forget));
        self.check_bounds();
        Ok(())
    }

    /// Looks at every key once more.
    fn finish(&mut self) {
        for index in 0..self.keys.len() {
            self.request_one(index, Request::Peek(1));
        }
    }
}
