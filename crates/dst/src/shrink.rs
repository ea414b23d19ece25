//! Shrinks a plan that violates something to a short script that still does.

use anyhow::Result;

use crate::{
    event_log::Output,
    plan::{Action as _, Plan, Step, World, merged},
    run::run,
};

/// Number of seeds under which a shorter plan is tried, because a step that is left out changes the delays of those
/// that follow.
const SEEDS: u64 = 4;

/// The same for a plan that stays long, because its violation needs delays that few seeds have. A table has no delays.
const MORE_SEEDS: u64 = 128;

/// A plan with more steps is long.
const LONG_PLAN_STEPS: usize = 10;

/// The shortest plan found whose violation is of the same kind.
pub(crate) fn shrink<W: World>(plan: &Plan<W>) -> Result<Plan<W>> {
    shrink_by(plan, |plan| Ok(run(plan, Output::Nothing).violation))
}

/// The same; `violation` runs a plan.
fn shrink_by<W: World>(
    plan: &Plan<W>,
    violation: impl Fn(&Plan<W>) -> Result<Option<String>>,
) -> Result<Plan<W>> {
    let kind = |plan: &Plan<W>| Ok(violation(plan)?.as_deref().map(kind_of));
    let mut shrinker =
        Shrinker { kind: kind(plan)?, kind_of: kind, shortest: plan.clone(), seeds: SEEDS };
    loop {
        let before = shrinker.shortest.clone();
        shrinker.leave_out_steps()?;
        shrinker.leave_out_requests()?;
        shrinker.leave_out_keys()?;
        shrinker.simplify_world()?;
        if shrinker.shortest == before {
            shrinker.merge_steps()?;
        }
        if shrinker.shortest == before && before.steps.len() > LONG_PLAN_STEPS {
            shrinker.seeds = MORE_SEEDS;
            shrinker.leave_out_steps()?;
            shrinker.seeds = SEEDS;
        }
        if shrinker.shortest == before {
            return Ok(before);
        }
    }
}

struct Shrinker<W: World, F> {
    /// Runs a plan, and returns the kind of its violation.
    kind_of: F,
    kind: Option<String>,
    shortest: Plan<W>,
    /// Seeds under which each shorter plan is tried.
    seeds: u64,
}

impl<W: World, F: Fn(&Plan<W>) -> Result<Option<String>>> Shrinker<W, F> {
    /// Replaces the shortest plan so far by a shorter one, if it violates the same property.
    fn accept(&mut self, mut shorter: Plan<W>) -> Result<bool> {
        if !shorter.is_valid() {
            return Ok(false);
        }
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

    /// Replaces two takes from a key, or two pipelines, by one as large as both: a violation may need a limit that is used up.
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

    /// Leaves out requests of batches.
    fn leave_out_requests(&mut self) -> Result<()> {
        for step in 0..self.shortest.steps.len() {
            let mut index = 0;
            loop {
                let mut shorter = self.shortest.clone();
                let Some(requests) = shorter.steps[step].action.requests() else { break };
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

    /// Leaves out keys that no step names, and policies.
    fn leave_out_keys(&mut self) -> Result<()> {
        for key in (0..self.shortest.keys.len()).rev() {
            let mut shorter = self.shortest.clone();
            let names = |step: &mut Step<W::Action>| {
                step.action.names().0.into_iter().any(|named| *named == key)
            };
            if shorter.keys.len() > 1 && !shorter.steps.iter_mut().any(names) {
                shorter.keys.remove(key);
                shorter.world.leave_out_key(key);
                for named in shorter.steps.iter_mut().flat_map(|step| step.action.names().0) {
                    *named -= usize::from(*named > key);
                }
                self.accept(shorter)?;
            }
            let mut shorter = self.shortest.clone();
            if let Some(plan) = shorter.keys.get_mut(key).filter(|it| it.0.len() > 1) {
                plan.0.truncate(1);
                self.accept(shorter)?;
            }
        }
        Ok(())
    }

    fn simplify_world(&mut self) -> Result<()> {
        for world in self.shortest.world.simpler(&self.shortest.keys) {
            if world != self.shortest.world {
                let shorter = Plan { world, ..self.shortest.clone() };
                if self.accept(shorter)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The kind of a violation: the word before the second colon.
fn kind_of(violation: &str) -> String {
    violation.split(": ").nth(1).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::Request,
        random::Random,
        shared::{Action, Shared},
    };

    /// A plan with many steps.
    fn plan() -> Plan<Shared> {
        let mut plans = (0..).map(|seed| Shared::generate(seed, &Random::new(seed, "plan")));
        plans.find(|plan| plan.steps.len() > 50).unwrap()
    }

    #[test]
    fn shrink_leaves_what_the_violation_needs() {
        let plan = plan();
        let needed = [plan.steps[20].clone(), plan.steps[40].clone()];
        let violation = |plan: &Plan<Shared>| {
            let violates = needed.iter().all(|it| plan.steps.contains(it));
            Ok(violates.then(|| "after 1 ms: safety: too much".to_owned()))
        };
        assert_eq!(shrink_by(&plan, violation).unwrap().steps, needed);
    }

    #[test]
    fn shrink_of_a_violation_that_few_seeds_have_tries_more() {
        let plan = Plan { seed: 1, ..plan() };
        let steps = plan.steps.len();
        let violation = |plan: &Plan<Shared>| {
            let violates = plan.steps.len() == steps || plan.seed.is_multiple_of(16);
            Ok(violates.then(|| "after 1 ms: safety: too much".to_owned()))
        };
        assert!(shrink_by(&plan, violation).unwrap().steps.is_empty());
    }

    #[test]
    fn shrink_of_a_violation_that_needs_many_units_merges_takes() {
        let take = |step: Step<Action>| Step {
            action: Action::Request(vec![(0, Request::Take(2))]),
            ..step
        };
        let plan = plan();
        let plan = Plan { steps: plan.steps.iter().cloned().map(take).collect(), ..plan };
        let violation = |plan: &Plan<Shared>| {
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
        let violation = |plan: &Plan<Shared>| {
            let kind = if plan.steps.len() > 30 { "safety" } else { "liveness" };
            Ok(Some(format!("after 1 ms: {kind}: too much")))
        };
        assert_eq!(shrink_by(&plan, violation).unwrap().steps.len(), 31);
    }
}
