//! Shrinks a plan that violates something to a short script that still does.

use anyhow::Result;

use crate::{
    event_log::Output,
    plan::{Action, FaultKind, KeyPlan, Plan},
    run::run,
    server::ServerPlan,
};

/// Number of seeds under which a shorter plan is tried, because a step that is left out changes the delays of those
/// that follow.
const SEEDS: u64 = 4;

/// Most steps of a plan of which every two are left out, because there are so many pairs.
const MAX_PAIRED: usize = 60;

/// A plan with more steps is long.
const FEW: usize = 10;

/// The shortest plan found whose violation is of the same kind.
pub(crate) fn shrink(plan: &Plan) -> Result<Plan> {
    let mut shrinker = Shrinker { kind: kind_of(plan)?, shortest: plan.clone() };
    loop {
        let before = shrinker.shortest.clone();
        shrinker.leave_out_steps()?;
        shrinker.leave_out_requests()?;
        shrinker.leave_out_keys()?;
        shrinker.leave_out_processes()?;
        shrinker.leave_out_settings()?;
        if shrinker.shortest == before {
            shrinker.leave_out_pairs()?;
            shrinker.replace_requests()?;
        }
        if shrinker.shortest == before {
            return Ok(before);
        }
    }
}

struct Shrinker {
    kind: Option<String>,
    shortest: Plan,
}

impl Shrinker {
    /// Replaces the shortest plan so far by a shorter one, if it violates the same property.
    fn accept(&mut self, mut shorter: Plan) -> Result<bool> {
        for seed in shorter.seed..shorter.seed + SEEDS {
            shorter.seed = seed;
            if kind_of(&shorter)? == self.kind {
                self.shortest = shorter;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Leaves out steps, in ever smaller parts.
    fn leave_out_steps(&mut self) -> Result<()> {
        let mut part = self.shortest.steps.len().div_ceil(2).max(1);
        loop {
            let (mut begin, mut is_shorter) = (0, false);
            while begin < self.shortest.steps.len() {
                let mut shorter = self.shortest.clone();
                let end = (begin + part).min(shorter.steps.len());
                shorter.steps.drain(begin..end);
                if self.accept(shorter)? {
                    is_shorter = true;
                } else {
                    begin = end;
                }
            }
            if part == 1 && !is_shorter {
                return Ok(());
            }
            part = part.div_ceil(2).max(1);
        }
    }

    /// Leaves out two steps at a time: one may need the other, such as the end of a hold its begin.
    fn leave_out_pairs(&mut self) -> Result<()> {
        if self.shortest.steps.len() > MAX_PAIRED {
            return Ok(());
        }
        let mut first = 0;
        while first < self.shortest.steps.len() {
            let mut second = first + 1;
            while second < self.shortest.steps.len() {
                let mut shorter = self.shortest.clone();
                shorter.steps.remove(second);
                shorter.steps.remove(first);
                second = if self.accept(shorter)? { first + 1 } else { second + 1 };
            }
            first += 1;
        }
        Ok(())
    }

    /// Replaces requests by short pipelines: a long plan of a server may need the bytes of many requests.
    fn replace_requests(&mut self) -> Result<()> {
        if self.shortest.server.is_none() || self.shortest.steps.len() <= FEW {
            return Ok(());
        }
        for step in 0..self.shortest.steps.len() {
            let mut shorter = self.shortest.clone();
            let action = &mut shorter.steps[step].action;
            let key = match action {
                Action::Request(requests) => requests[0].0,
                Action::Wait { key, .. } => *key,
                _ => continue,
            };
            *action = Action::Pipeline { key, cost: 1, count: 20 };
            self.accept(shorter)?;
        }
        Ok(())
    }

    /// Leaves out requests of batches.
    fn leave_out_requests(&mut self) -> Result<()> {
        for step in 0..self.shortest.steps.len() {
            let mut index = 0;
            loop {
                let mut shorter = self.shortest.clone();
                let Action::Request(requests) = &mut shorter.steps[step].action else { break };
                if requests.len() < 2 || index >= requests.len() {
                    break;
                }
                requests.remove(index);
                if !self.accept(shorter)? {
                    index += 1;
                }
            }
        }
        Ok(())
    }

    /// Leaves out keys that no step names, and policies that none uses.
    fn leave_out_keys(&mut self) -> Result<()> {
        for key in (0..self.shortest.keys.len()).rev() {
            let mut shorter = self.shortest.clone();
            if shorter.keys.len() > 1 && !shorter.steps.iter_mut().any(|it| names(it, key)) {
                shorter.keys.remove(key);
                if let Some(server) = &mut shorter.server {
                    server.named.retain(|named| *named != key);
                    server.named.iter_mut().for_each(|named| *named -= usize::from(*named > key));
                }
                for step in &mut shorter.steps {
                    each_key(&mut step.action, |named| *named -= usize::from(*named > key));
                }
                self.accept(shorter)?;
            }
            let mut shorter = self.shortest.clone();
            let uses =
                |action: &Action| matches!(action, Action::UsePolicy { key: it, .. } if *it == key);
            if let Some(plan) = shorter.keys.get_mut(key)
                && plan.0.len() > 1
                && !shorter.steps.iter().any(|it| uses(&it.action))
            {
                plan.0.truncate(1);
                self.accept(shorter)?;
            }
        }
        Ok(())
    }

    /// Leaves out the processes after the last one that a step names.
    fn leave_out_processes(&mut self) -> Result<()> {
        let used = self.shortest.steps.iter().map(|step| step.process + 1).max().unwrap_or(1);
        if used < self.shortest.processes {
            let mut shorter = self.shortest.clone();
            shorter.processes = used;
            shorter.serving.retain(|it| it.0 < used);
            self.accept(shorter)?;
        }
        Ok(())
    }

    /// Leaves out settings of a server.
    fn leave_out_settings(&mut self) -> Result<()> {
        let settings: [fn(&mut ServerPlan, &[KeyPlan]); 4] = [
            |server, _| server.http.clear(),
            |server, _| server.rules.clear(),
            |server, _| server.bounds = None,
            // A key with several policies needs a name.
            |server, keys| server.named.retain(|key| keys[*key].0.len() > 1),
        ];
        for leave_out in settings {
            let mut shorter = self.shortest.clone();
            let Some(server) = &mut shorter.server else { return Ok(()) };
            leave_out(server, &shorter.keys);
            if shorter != self.shortest {
                self.accept(shorter)?;
            }
        }
        Ok(())
    }
}

/// The kind of violation: the word before the colon.
fn kind_of(plan: &Plan) -> Result<Option<String>> {
    let violation = run(plan, Output::Nothing)?.violation;
    Ok(violation.map(|it| it.split(": ").nth(1).unwrap_or_default().to_owned()))
}

fn names(step: &mut crate::plan::Step, key: usize) -> bool {
    let mut is_named = false;
    each_key(&mut step.action, |named| is_named |= *named == key);
    is_named
}

/// Calls `change` with each key that an action names.
fn each_key(action: &mut Action, mut change: impl FnMut(&mut usize)) {
    match action {
        Action::Request(requests) => requests.iter_mut().for_each(|it| change(&mut it.0)),
        Action::MultiKey(_, takes) | Action::WaitAll { takes, .. } => {
            takes.iter_mut().for_each(|it| change(&mut it.0))
        }
        Action::Permit(permit) => change(&mut permit.key),
        Action::Wait { key, .. }
        | Action::Push { key, .. }
        | Action::Pipeline { key, .. }
        | Action::UsePolicy { key, .. }
        | Action::Flood { key, .. } => change(key),
        Action::NodeFault { kind: FaultKind::MigrateSlot, amount, .. } => {
            let mut key = usize::try_from(*amount).unwrap_or_default();
            change(&mut key);
            *amount = i64::try_from(key).unwrap_or_default();
        }
        Action::Revisit { .. }
        | Action::Reload(_)
        | Action::Describe { .. }
        | Action::Fault { .. }
        | Action::NodeFault { .. } => {}
    }
}
