//! One run of a plan.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
};

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, LocalOptions};

use crate::{
    event_log::{Output, RunOutcome},
    plan::{Plan, World},
};

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

/// Runs a plan. A panic is a violation, and so is an error.
pub(crate) fn run<W: World>(plan: &Plan<W>, output: Output) -> RunOutcome {
    let ran = panic::catch_unwind(AssertUnwindSafe(|| W::run(plan, output)));
    let mut outcome =
        ran.unwrap_or_else(|_| Ok(RunOutcome::default())).unwrap_or_else(|error| RunOutcome {
            violation: Some(format!("after 0 ms: error: {error:#}")),
            ..RunOutcome::default()
        });
    if PANICKED.replace(false) {
        outcome.violation = Some("after 0 ms: panic: see above".to_owned());
    }
    outcome
}

/// Runs a future in one thread and in virtual time. `on_poll` is called before a task runs.
pub(crate) fn block_on<T>(
    seed: u64,
    on_poll: impl Fn() + Send + Sync + 'static,
    future: impl Future<Output = T>,
) -> Result<T> {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // Some of tokio's channels wake their receivers in a random order. Without the flag, which `.cargo/config.toml` sets,
    // equal seeds may give different runs.
    #[cfg(tokio_unstable)]
    builder
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()))
        .on_before_task_poll(move |_| on_poll());
    #[cfg(not(tokio_unstable))]
    let _ = (seed, on_poll);
    let runtime = builder.build_local(LocalOptions::default()).context("cannot make a runtime")?;
    Ok(runtime.block_on(future))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::worlds;

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
            let outcome = worlds::read(&text).unwrap().run(Output::Nothing);
            assert_eq!(outcome.violation, None, "{}", name.display());
            assert!(outcome.events > 0, "{}", name.display());
        }
    }
}
