//! `cargo xtask test`: what CI runs, and everybody before they hand in a change.

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    iter,
    num::NonZero,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{docs, dst, install, loom, python, shell, tidy, workspace};

/// The variable with the number of tests that run at a time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Tests wait for the servers that they have started more than they compute.
const TESTS_PER_CORE: usize = 2;

/// Every step runs even if one before it failed, so that one run shows every failure.
pub(crate) fn run(may_install: bool) -> Result<()> {
    let mut steps = Steps::default();
    let mut path = OsString::new();
    steps.step("install what is missing", || {
        path = install::ensure(may_install)?;
        Ok(())
    });
    if steps.ended.iter().any(|it| it.outcome == Outcome::Failed) {
        return steps.finish();
    }

    let builds = thread::spawn(build_ahead);
    steps.cargo(&["fmt", "--all", "--check"]);
    steps.cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
    steps.cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    shell::announce("cargo xtask tidy");
    steps.step("tidy", tidy::run);
    shell::announce("cargo xtask docs: links and words; its tests are among those that follow");
    steps.step("docs", docs::check);
    // Apart, so that the summary distinguishes the time of compiling from that of the tests.
    steps.cargo(&["test", "--workspace", "--locked", "--no-run"]);
    let mut test = command(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    if env::var_os(TEST_THREADS).is_none() {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        test.env(TEST_THREADS, (cores * TESTS_PER_CORE).to_string());
    }
    steps.run(test.env("PATH", path));
    shell::announce("the Python package");
    steps.timed("python", || {
        Ok(match python::test()? {
            python::Tested::Passed => Outcome::Passed,
            python::Tested::Skipped => Outcome::Skipped,
        })
    });
    // One that failed fails again in the step that needs it, with its error.
    let _ = builds.join();
    steps.step("loom", loom::run);
    steps.step("dst", || dst::run_first(1_000));
    let mut doc = command(&["doc", "--workspace", "--no-deps", "--locked"]);
    steps.run(doc.env("RUSTDOCFLAGS", "-D warnings"));
    // In the profile of the tests, for which everything that they use has been built already.
    let mut benches = command(&["bench", "--profile", "dev", "--workspace", "--locked"]);
    for (name, _) in workspace::benches(&workspace::packages()?) {
        benches.args(["--bench", name]);
    }
    steps.run(benches.args(["--", "--quick"]));

    steps.finish()
}

/// Builds what the last steps run while the first ones leave a processor idle: tests wait for servers more than they
/// compute. In other folders, so that no build waits for another one.
fn build_ahead() {
    for command in iter::once(dst::build()).chain(loom::builds()) {
        shell::run_idle(&command);
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = shell::cargo();
    command.current_dir(workspace::root()).args(arguments);
    command
}

/// What `test` leaves out, and why.
const LEFT_OUT: [(&str, &str); 4] = [
    (
        "cargo xtask soak",
        "faults and bounds in their full sizes: 25 minutes. The tests here use small sizes",
    ),
    (
        "cargo xtask chaos",
        "failing stores and networks, for minutes each: 22 minutes. The tests here last seconds",
    ),
    (
        "cargo xtask fuzz",
        "new inputs for the fuzz targets. The tests here run the inputs of the corpora",
    ),
    (
        "cargo xtask bench",
        "figures against peers. Here every benchmark runs briefly, without figures",
    ),
];

/// The steps that have run, in order.
#[derive(Default)]
struct Steps {
    ended: Vec<Step>,
}

struct Step {
    name: String,
    time: Duration,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

impl Steps {
    fn cargo(&mut self, arguments: &[&str]) {
        self.run(&mut command(arguments));
    }

    fn run(&mut self, command: &mut Command) {
        let name = shell::command_line(command);
        self.step(&name, || shell::run(command));
    }

    fn step(&mut self, name: &str, step: impl FnOnce() -> Result<()>) {
        self.timed(name, || step().map(|()| Outcome::Passed));
    }

    #[expect(clippy::disallowed_methods, reason = "the summary tells how long a step took")]
    fn timed(&mut self, name: &str, step: impl FnOnce() -> Result<Outcome>) {
        let started = Instant::now();
        let outcome = step().unwrap_or_else(|error| {
            println!("{error:#}");
            Outcome::Failed
        });
        self.ended.push(Step { name: name.to_owned(), time: started.elapsed(), outcome });
    }

    fn finish(self) -> Result<()> {
        println!("{}", self.summary());
        let failed: Vec<_> = self
            .ended
            .iter()
            .filter(|it| it.outcome == Outcome::Failed)
            .map(|it| it.name.as_str())
            .collect();
        if failed.is_empty() {
            shell::announce("all steps passed");
            return Ok(());
        }
        bail!("these steps failed:\n  {}", failed.join("\n  "))
    }

    /// The steps with their times, and those that did not run.
    fn summary(&self) -> String {
        let mut text = String::from("\n   time  result  step\n");
        for Step { name, time, outcome } in &self.ended {
            let (minutes, seconds) = (time.as_secs() / 60, time.as_secs() % 60);
            let result = match outcome {
                Outcome::Passed => "passed",
                Outcome::Skipped => "SKIPPED",
                Outcome::Failed => "FAILED",
            };
            let _ = writeln!(text, "{minutes:>4}:{seconds:02}  {result}  {name}");
        }
        let total: Duration = self.ended.iter().map(|it| it.time).sum();
        let _ = writeln!(
            text,
            "{:>4}:{:02}  in all\n\nnot a part of this:",
            total.as_secs() / 60,
            total.as_secs() % 60
        );
        for (name, reason) in LEFT_OUT {
            let _ = writeln!(text, "  {name:<18} {reason}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lists_steps_with_time_and_result() {
        let step = |name: &str, seconds, outcome| Step {
            name: name.to_owned(),
            time: Duration::from_secs(seconds),
            outcome,
        };
        let ended = vec![
            step("tidy", 3, Outcome::Passed),
            step("cargo test", 125, Outcome::Failed),
            step("python", 0, Outcome::Skipped),
        ];
        let steps = Steps { ended };
        let text = steps.summary();
        assert!(
            text.contains("   0:03  passed  tidy\n   2:05  FAILED  cargo test\n   0:00  SKIPPED  python\n   2:08  in all\n"),
            "{text}"
        );
        assert!(text.contains("cargo xtask soak "), "{text}");
        assert!(steps.finish().unwrap_err().to_string().ends_with("failed:\n  cargo test"));
    }
}
