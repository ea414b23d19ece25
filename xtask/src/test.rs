//! `cargo xtask test`: the everyday run, which every commit passes. `cargo xtask test --all` runs everything.

use std::{
    env,
    fmt::Write as _,
    fs::{self, File},
    num::NonZero,
    path::PathBuf,
    process::Command,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    dist, docs, dst,
    extent::{Extent, TESTS_OF_ALL},
    install, javascript, loom, python, shell, tidy, workspace,
};

/// The variable with the number of tests that run at a time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Tests wait for the servers that they have started more than they compute.
const TESTS_PER_CORE: usize = 2;
/// The seeds of the simulation that `--all` runs: a test of the crate `dst` reads it.
const SEEDS: (&str, &str) = ("TESTS_SEEDS", "1000");

/// Every step runs even if one before it failed, so that one run shows every failure. Some run beside others, which leave
/// a processor idle.
pub(crate) fn run(extent: Extent, may_install: bool) -> Result<()> {
    install::announce(extent, may_install)?;
    let mut steps = Steps::new();
    let install = Beside::start("install", move |steps| {
        steps.step("install what is missing", || install::install_missing(extent));
        // The step that needs these tools tries once more, and is skipped without them.
        steps.timed("install the tools of the Python package", || {
            Ok(python::ensure_tools(extent).map_or(Outcome::Skipped, |()| Outcome::Passed))
        });
    })?;
    steps.cargo(&["fmt", "--all", "--check"]);
    steps.cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
    steps.cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    shell::announce("cargo xtask tidy");
    steps.step("tidy", tidy::run);
    shell::announce("cargo xtask docs: links and words; its tests are among those that follow");
    steps.step("docs", docs::check);
    // Apart, so that the summary distinguishes the time of compiling from that of the tests. The libraries are the module and
    // the Python package: one build has one tree of dependencies for everything.
    steps.cargo(&["build", "--workspace", "--locked", "--lib", "--bins", "--tests"]);
    steps.join(install)?;

    // Alone, because they wait for servers and for time to pass, and have deadlines.
    let mut tests = tests(extent);
    if extent == Extent::All {
        tests.env(SEEDS.0, SEEDS.1);
    }
    // Built above. Each process of a test would otherwise ask Cargo whether it is current.
    tests.env("TESTS_MODULE", workspace::root().join("target/debug/libsluicegate_module.so"));
    steps.run(tests.env("PATH", install::path()?));
    let python = Beside::start("python", move |steps| {
        shell::announce("the Python package");
        steps.timed("python", || {
            Ok(match python::test(extent)? {
                python::Tested::Passed => Outcome::Passed,
                python::Tested::Skipped => Outcome::Skipped,
            })
        });
    })?;
    steps.cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--doc"]);
    let mut doc = command(&["doc", "--workspace", "--no-deps", "--locked"]);
    steps.run(doc.env("RUSTDOCFLAGS", "-D warnings"));
    if extent == Extent::All {
        // In the profile of the tests, for which everything that they use has been built already.
        let mut benches = command(&["bench", "--profile", "dev", "--workspace", "--locked"]);
        for (name, _) in workspace::benches(&workspace::packages()?) {
            benches.args(["--bench", name]);
        }
        steps.run(benches.args(["--", "--quick"]));
        steps.step("loom", loom::run);
        steps.step("javascript", || javascript::run(&[]));
        steps.step("dst --fresh", dst::run_fresh);
        steps.step("dist --try", || dist::run(&["--try"]));
    }
    steps.join(python)?;

    steps.finish(extent)
}

/// The command that runs the tests, by cargo-nextest where it is installed: it runs tests of several binaries at a time.
fn tests(extent: Extent) -> Command {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = env::var(TEST_THREADS).unwrap_or_else(|_| (cores * TESTS_PER_CORE).to_string());
    let mut command = if shell::exists("cargo-nextest") {
        let mut command = command(&["nextest", "run"]);
        command.args(["--status-level", "slow", "--test-threads", &threads]);
        command
    } else {
        let mut command = command(&["test"]);
        command.env(TEST_THREADS, threads);
        command
    };
    // Without the documentation's, which have a step of their own.
    command.args(["--workspace", "--locked", "--tests", "--no-fail-fast", "--"]);
    if extent == Extent::Everyday {
        for (_, part, _) in TESTS_OF_ALL {
            command.args(["--skip", part]);
        }
    }
    command
}

/// Steps that run one after the other in a thread of their own. Their output is in a file until they are joined.
struct Beside {
    thread: JoinHandle<Steps>,
    log: PathBuf,
}

impl Beside {
    fn start(name: &str, run: impl FnOnce(&mut Steps) + Send + 'static) -> Result<Self> {
        let path = workspace::root().join("target").join(format!("test-{name}.log"));
        fs::create_dir_all(workspace::root().join("target"))?;
        let log = File::create(&path).with_context(|| path.display().to_string())?;
        let thread = thread::spawn(move || {
            shell::write_to(log);
            let mut steps = Steps::new();
            run(&mut steps);
            steps
        });
        Ok(Self { thread, log: path })
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
    ("cargo xtask bench", "figures against peers"),
];

/// The same of the everyday run.
const ONLY_ALL: (&str, &str) = (
    "cargo xtask test --all",
    "tests with browsers, proxies, Kubernetes, Prometheus and clients of other languages, the JavaScript \
     package, model checks, more seeds of the simulation, a trial of the release",
);

/// The steps that have run, in order.
struct Steps {
    started: Instant,
    ended: Vec<Step>,
}

struct Step {
    name: String,
    time: Duration,
    outcome: Outcome,
    /// Whether it ran beside others.
    beside: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

impl Steps {
    #[expect(clippy::disallowed_methods, reason = "the summary tells how long all steps took")]
    fn new() -> Self {
        Self { started: Instant::now(), ended: Vec::new() }
    }

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
            shell::print(format_args!("{error:#}"));
            Outcome::Failed
        });
        let step = Step { name: name.to_owned(), time: started.elapsed(), outcome, beside: false };
        self.ended.push(step);
    }

    /// Waits for the steps that ran beside these, and prints their output.
    fn join(&mut self, beside: Beside) -> Result<()> {
        let ended = beside.thread.join().expect("a step fails by an error").ended;
        self.ended.extend(ended.into_iter().map(|it| Step { beside: true, ..it }));
        let log = fs::read(&beside.log).with_context(|| beside.log.display().to_string())?;
        print!("{}", String::from_utf8_lossy(&log));
        Ok(())
    }

    fn finish(self, extent: Extent) -> Result<()> {
        println!("{}", self.summary(extent, self.started.elapsed()));
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
    fn summary(&self, extent: Extent, total: Duration) -> String {
        let mut text = String::from("\n   time  result  step\n");
        for Step { name, time, outcome, beside } in &self.ended {
            let (minutes, seconds) = (time.as_secs() / 60, time.as_secs() % 60);
            let beside = if *beside { " (beside others)" } else { "" };
            let result = match outcome {
                Outcome::Passed => "passed",
                Outcome::Skipped => "SKIPPED",
                Outcome::Failed => "FAILED",
            };
            let _ = writeln!(text, "{minutes:>4}:{seconds:02}  {result}  {name}{beside}");
        }
        let _ = writeln!(
            text,
            "{:>4}:{:02}  in all\n\nnot a part of this:",
            total.as_secs() / 60,
            total.as_secs() % 60
        );
        let only_all = (extent == Extent::Everyday).then_some(ONLY_ALL);
        for (name, reason) in only_all.into_iter().chain(LEFT_OUT) {
            let _ = writeln!(text, "  {name:<22} {reason}");
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
            beside: name == "python",
        };
        let mut steps = Steps::new();
        steps.ended = vec![
            step("tidy", 3, Outcome::Passed),
            step("cargo test", 125, Outcome::Failed),
            step("python", 70, Outcome::Skipped),
        ];
        let text = steps.summary(Extent::Everyday, Duration::from_secs(128));
        assert!(
            text.contains("   0:03  passed  tidy\n   2:05  FAILED  cargo test\n   1:10  SKIPPED  python (beside others)\n   2:08  in all\n"),
            "{text}"
        );
        assert!(text.contains("cargo xtask soak "), "{text}");
        assert!(text.contains("cargo xtask test --all "), "{text}");
        let text = steps.summary(Extent::All, Duration::ZERO);
        assert!(!text.contains("--all"), "{text}");
        assert!(
            steps.finish(Extent::All).unwrap_err().to_string().ends_with("failed:\n  cargo test")
        );
    }

    #[test]
    fn join_adds_every_step_that_ran_beside_and_its_output() {
        let beside = Beside::start("unit", |steps| {
            steps.step("install", || bail!("no network"));
            steps.step("python", || Ok(()));
        });
        let beside = beside.unwrap();
        let log = beside.log.clone();
        let mut steps = Steps::new();
        steps.join(beside).unwrap();
        assert_eq!(fs::read_to_string(log).unwrap(), "no network\n");
        let outcomes: Vec<_> = steps.ended.iter().map(|it| (it.outcome, it.beside)).collect();
        assert_eq!(outcomes, [(Outcome::Failed, true), (Outcome::Passed, true)]);
    }
}
