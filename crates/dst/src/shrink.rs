//! Shrinks a plan that violates something to a short script that still does.

use anyhow::Result;

use crate::{plan::Plan, run::run};

/// The shortest plan found that violates something as well. Leaves out steps, in ever smaller parts.
pub(crate) fn shrink(plan: &Plan) -> Result<Plan> {
    let mut shortest = plan.clone();
    let mut part = shortest.steps.len().div_ceil(2).max(1);
    loop {
        let mut begin = 0;
        let mut is_shorter = false;
        while begin < shortest.steps.len() {
            let mut shorter = shortest.clone();
            let end = (begin + part).min(shorter.steps.len());
            shorter.steps.drain(begin..end);
            if run(&shorter, false)?.violation.is_some() {
                shortest = shorter;
                is_shorter = true;
            } else {
                begin = end;
            }
        }
        if part == 1 && !is_shorter {
            return Ok(shortest);
        }
        part = part.div_ceil(2).max(1);
    }
}
