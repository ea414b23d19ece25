//! Shrinks a plan that violates something to a short script that still does.

use anyhow::Result;

use crate::{
    event_log::Output,
    plan::{Action, FaultKind, KeyPlan, Plan, Request, Step},
    run::run,
    server::ServerPlan,
};

/// Number of seeds under which a shorter plan is tried, because a step that is left out changes the delays of those
/// that follow.
const SEEDS: u64 = 4;

/// The same for a plan that stays long, because its violation needs delays that few seeds have. A table has no delays.
const MORE_SEEDS: u64 = 128;

/// Maximum number of steps of a plan of which every two are left out. Longer plans have too many pairs.
const MAX_PAIRED: usize = 60;

/// A plan with more steps is long.
const LONG_PLAN_STEPS: usize = 10;

/// The shortest plan found whose violation is of the same kind.
pub(crate) fn shrink(plan: &Plan) -> Result<Plan> {
    shrink_by(plan, |plan| Ok(run(plan, Output::Nothing)?.violation))
}

/// The same; `violation` runs a plan.
fn shrink_by(plan: &Plan, violation: impl Fn(&Plan) -> Result<Option<String>>) -> Result<Plan> {
    let kind = |plan: &Plan| Ok(violation(plan)?.as_deref().map(kind_of));
    let mut shrinker =
        Shrinker { kind: kind(plan)?, kind_of: kind, shortest: plan.clone(), seeds: SEEDS };
    loop {
        let before = shrinker.shortest.clone();
        shrinker.leave_out_steps()?;
        shrinker.leave_out_requests()?;
        shrinker.leave_out_keys()?;
        shrinker.leave_out_processes()?;
        shrinker.leave_out_settings()?;
        if shrinker.shortest == before {
            shrinker.merge_steps()?;
            shrinker.leave_out_pairs()?;
            shrinker.replace_requests()?;
        }
        if shrinker.shortest == before
            && before.steps.len() > LONG_PLAN_STEPS
            && before.table.is_none()
        {
            shrinker.seeds = MORE_SEEDS;
            shrinker.leave_out_steps()?;
            shrinker.seeds = SEEDS;
        }
        if shrinker.shortest == before {
            return Ok(before);
        }
    }
}

struct Shrinker<F> {
    /// Runs a plan, and returns the kind of its violation.
    kind_of: F,
    kind: Option<String>,
    shortest: Plan,
    /// Seeds under which each shorter plan is tried.
    seeds: u64,
}

impl<F: Fn(&Plan) -> Result<Option<String>>> Shrinker<F> {
    /// Replaces the shortest plan so far by a shorter one, if it violates the same property.
    fn accept(&mut self, mut shorter: Plan) -> Result<bool> {
        for seed in shorter.seed..shorter.seed + self.seeds {
            shorter.seed = seed;
            if (self.kind_of)(&shorter)? == self.kind {
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

    /// Replaces two takes from a key, two that wait, or two pipelines, by one as large as both: a violation may need a limit that is used
    /// up.
    fn merge_steps(&mut self) -> Result<()> {
        let mut first = 0;
        while first < self.shortest.steps.len() {
            let steps = &self.shortest.steps;
            let mut later = first + 1..steps.len();
            let next =
                later.find_map(|it| Some((it, merged(&steps[first].action, &steps[it].action)?)));
            let Some((second, action)) = next else {
                first += 1;
                continue;
            };
            let mut is_shorter = false;
            for (kept, left_out) in [(second, first), (first, second)] {
                let mut shorter = self.shortest.clone();
                shorter.steps[kept].action = action.clone();
                shorter.steps.remove(left_out);
                if self.accept(shorter)? {
                    is_shorter = true;
                    break;
                }
            }
            first += usize::from(!is_shorter);
        }
        Ok(())
    }

    /// Replaces requests by short pipelines: a long plan of a server may need the bytes of many requests.
    fn replace_requests(&mut self) -> Result<()> {
        if self.shortest.server.is_none() || self.shortest.steps.len() <= LONG_PLAN_STEPS {
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
            self.accept(shorter)?;
        }
        Ok(())
    }

    /// Leaves out settings of a server.
    fn leave_out_settings(&mut self) -> Result<()> {
        let settings: [fn(&mut ServerPlan, &[KeyPlan]); 2] = [
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

/// The kind of a violation: the word before the second colon.
fn kind_of(violation: &str) -> String {
    violation.split(": ").nth(1).unwrap_or_default().to_owned()
}

/// One action in place of two.
fn merged(first: &Action, second: &Action) -> Option<Action> {
    match (first, second) {
        (Action::Request(first), Action::Request(second)) => match (&first[..], &second[..]) {
            (&[(key, Request::Take(one))], &[(other, Request::Take(two))]) if key == other => {
                Some(Action::Request(vec![(key, Request::Take(one.saturating_add(two)))]))
            }
            _ => None,
        },
        (
            &Action::Wait { key, request: Request::Take(one), timeout },
            &Action::Wait { key: other, request: Request::Take(two), timeout: also },
        ) if key == other => {
            let (request, timeout) = (Request::Take(one.saturating_add(two)), timeout.max(also));
            Some(Action::Wait { key, request, timeout })
        }
        (
            &Action::Pipeline { key, cost, count: one },
            &Action::Pipeline { key: other, cost: same, count: two },
        ) if (key, cost) == (other, same) => {
            Some(Action::Pipeline { key, cost, count: one.saturating_add(two) })
        }
        _ => None,
    }
}

fn names(step: &mut Step, key: usize) -> bool {
    let mut is_named = false;
    each_key(&mut step.action, |named| is_named |= *named == key);
    is_named
}

/// Calls `change` with each key that an action names.
fn each_key(action: &mut Action, mut change: impl FnMut(&mut usize)) {
    match action {
        Action::Request(requests) | Action::All { requests, .. } => {
            requests.iter_mut().for_each(|it| change(&mut it.0));
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
        | Action::Fault { .. }
        | Action::NodeFault { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan with many steps.
    fn plan() -> Plan {
        let mut plans = (0..).map(Plan::from_seed);
        plans.find(|plan| plan.steps.len() > 50 && plan.table.is_none()).unwrap()
    }

    #[test]
    fn shrink_leaves_what_the_violation_needs() {
        let plan = plan();
        let needed = [plan.steps[20].clone(), plan.steps[40].clone()];
        let violation = |plan: &Plan| {
            let violates = needed.iter().all(|it| plan.steps.contains(it));
            Ok(violates.then(|| "after 1 ms: safety: too much".to_owned()))
        };
        assert_eq!(shrink_by(&plan, violation).unwrap().steps, needed);
    }

    #[test]
    fn shrink_of_a_violation_that_few_seeds_have_tries_more() {
        let plan = Plan { seed: 1, ..plan() };
        let steps = plan.steps.len();
        let violation = |plan: &Plan| {
            let violates = plan.steps.len() == steps || plan.seed.is_multiple_of(16);
            Ok(violates.then(|| "after 1 ms: safety: too much".to_owned()))
        };
        assert!(shrink_by(&plan, violation).unwrap().steps.is_empty());
    }

    #[test]
    fn shrink_of_a_violation_that_needs_many_units_merges_takes() {
        let take =
            |step: Step| Step { action: Action::Request(vec![(0, Request::Take(2))]), ..step };
        let plan = plan();
        let plan = Plan { steps: plan.steps.iter().cloned().map(take).collect(), ..plan };
        let violation = |plan: &Plan| {
            let takes = plan.steps.iter().map(|step| match step.action {
                Action::Request(ref requests) => match requests[..] {
                    [(0, Request::Take(cost))] => cost,
                    _ => 0,
                },
                _ => 0,
            });
            Ok((takes.sum::<u32>() >= 80).then(|| "after 1 ms: safety: too much".to_owned()))
        };
        let shrunk = shrink_by(&plan, violation).unwrap();
        let actions: Vec<_> = shrunk.steps.into_iter().map(|step| step.action).collect();
        assert_eq!(actions, [Action::Request(vec![(0, Request::Take(80))])]);
    }

    #[test]
    fn shrink_keeps_the_kind_of_the_violation() {
        let plan = plan();
        let violation = |plan: &Plan| {
            let kind = if plan.steps.len() > 30 { "safety" } else { "liveness" };
            Ok(Some(format!("after 1 ms: {kind}: too much")))
        };
        assert_eq!(shrink_by(&plan, violation).unwrap().steps.len(), 31);
    }
}
