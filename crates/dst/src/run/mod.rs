//! One run of a plan.

mod recover;
mod world;

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
};

use anyhow::{Context as _, Result};
use tokio::runtime::LocalOptions;

use self::world::World;
use crate::{event_log::Output, outcome::RunOutcome, plan::Plan, server, table};

thread_local! {
    /// Whether a task of this thread has panicked, which tokio would pass over.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Makes a panic of a task a violation.
pub(crate) fn watch_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICKED.set(true);
        usual(info);
    }));
}

/// Runs a plan in one thread and in virtual time. A panic is a violation.
pub(crate) fn run(plan: &Plan, output: Output) -> Result<RunOutcome> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| match (plan.table, &plan.server) {
        (Some(table), _) => table::run(plan, table, output),
        (None, Some(server)) => server::run(plan, server, output).map(note_panic),
        (None, None) => run_processes(plan, output),
    }));
    PANICKED.set(false);
    outcome.unwrap_or_else(|_| {
        let violation = Some("after 0 ms: panic: see above".to_owned());
        Ok(RunOutcome { violation, ..RunOutcome::default() })
    })
}

/// Makes a panic of a connection a violation, which the server only logs.
fn note_panic(mut outcome: RunOutcome) -> RunOutcome {
    if PANICKED.replace(false) {
        outcome.violation = Some("after 0 ms: panic: see above".to_owned());
    }
    outcome
}

/// Runs a plan of processes that share a server.
fn run_processes(plan: &Plan, output: Output) -> Result<RunOutcome> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // Some of tokio's channels wake their receivers in a random order. Without the flag, which `.cargo/config.toml` sets,
    // equal seeds may give different runs.
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&plan.seed.to_le_bytes()));
    let runtime = builder.build_local(LocalOptions::default()).context("cannot make a runtime")?;
    runtime.block_on(async {
        let mut world = World::new(plan, output)?;
        world.take_steps().await?;
        world.recover().await;
        for process in world.closing.iter().chain(&world.processes) {
            process.end();
        }
        world.checks.check_released();
        world.checks.finish();
        if PANICKED.replace(false) {
            world.checks.violation(format_args!("panic: see above"));
        }
        let (hash, events) = world.log.summary();
        let violation = world.checks.take_violation();
        Ok(RunOutcome { hash, events, millis: world.time.millis(), violation })
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Scripts that have shown a bug, which has been fixed. They are short enough to be understood.
    #[test]
    fn kept_scripts_violate_nothing() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert!(names.len() >= 4, "{names:?}");
        for name in names {
            let text = fs::read_to_string(&name).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#')).count();
            assert!(lines <= 20, "{}: {lines} lines: expected at most 20", name.display());
            let plan: Plan = text.parse().unwrap();
            let outcome = run(&plan, Output::Nothing).unwrap();
            assert_eq!(outcome.violation, None, "{}", name.display());
            assert!(outcome.events >= plan.steps.len() as u64, "{}", name.display());
        }
    }
}
