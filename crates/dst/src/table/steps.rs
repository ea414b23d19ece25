//! The steps of a run: requests, snapshots and restarts.

use anyhow::Result;

use super::{file::End, world::TableWorld};
use crate::{
    event_log::Output,
    outcome::RunOutcome,
    plan::{Action, FaultKind, Plan, Request, Step, TablePlan},
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
            | Action::Describe { .. }
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
