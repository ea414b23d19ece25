//! Guarantees of the core, as properties over random histories.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use proptest::prelude::*;
use sluicegate_conformance::{CoreSubject, History, Shape, Step, Subject};
use sluicegate_core::{Decision, Operation, Timestamp};

mod algorithms;
mod bounds;
mod builder;
mod check;
mod drift;
mod encoding;
mod fuzz;
mod guarantees;
mod holds;
mod multi_key;
mod policy_errors;
mod policy_text;
mod properties;

const KEY: &[u8] = b"user:action";

/// One policy; time that runs forwards only.
const STEADY: Shape =
    Shape { steps: 30, changes: false, steps_back: false, reserve: true, zones: true };
/// Policies that change under the live key.
const CHANGING: Shape = Shape { changes: true, ..STEADY };

/// A failure prints the whole history, so that no file is needed to run it again.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

fn histories(shape: Shape) -> impl Strategy<Value = History> {
    any::<u64>().prop_map(move |seed| History::random(seed, shape))
}

/// Applies `step` to the core.
fn apply_step(core: &mut CoreSubject, step: &Step) -> Option<Decision> {
    core.apply(step.of(KEY)).ok()
}

/// Applies another operation at another time to a copy of `core`.
fn apply_to_copy(
    core: &CoreSubject,
    step: &Step,
    now: Timestamp,
    operation: Operation,
) -> Decision {
    let mut entry = core.entry(KEY).cloned();
    sluicegate_core::apply(&step.policy, &mut entry, now, operation).expect("was no error before")
}
