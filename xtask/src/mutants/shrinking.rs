//! Shrinks the violations that planted bugs cause, and runs the kept scripts with them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};

use super::run::{MUTANT_TIMEOUT, output_of};

/// Maximum number of lines of a script that is short, comments aside.
const FEW_LINES: usize = 20;

/// Time limit for a kept script.
const SCRIPT_TIMEOUT: Duration = Duration::from_mins(1);

/// A violation that a thread shrinks.
pub(super) struct Shrinking {
    name: &'static str,
    found: JoinHandle<Result<Found>>,
}

/// What a program with a bug does.
struct Found {
    /// Lines of the shortest script.
    lines: usize,
    /// The kept scripts that show the bug.
    scripts: Vec<PathBuf>,
}

impl Shrinking {
    /// Shrinks what this program finds with this seed. `index` differs from call to call.
    pub(super) fn begin(
        name: &'static str,
        seed: u64,
        program: &Path,
        index: usize,
        scripts: &[PathBuf],
    ) -> Result<Self> {
        // The next bug changes the program.
        let kept = program.with_file_name(format!("shrinking-{index}"));
        fs::copy(program, &kept)?;
        let scripts = scripts.to_vec();
        let find = move || {
            let scripts = scripts_that_fail(&kept, scripts);
            let lines = shrink(&kept, seed)?;
            fs::remove_file(&kept)?;
            Ok(Found { lines, scripts })
        };
        Ok(Self { name, found: thread::spawn(find) })
    }
}

/// The scripts in which the program violates something.
fn scripts_that_fail(program: &Path, scripts: Vec<PathBuf>) -> Vec<PathBuf> {
    let output = program.with_extension("output");
    let mut failed = Vec::new();
    for script in scripts {
        let mut run = Command::new(program);
        run.arg("--script").arg(&script);
        // One that does not end shows the bug, too.
        if !matches!(output_of(run, &output, SCRIPT_TIMEOUT), Ok(None)) {
            failed.push(script);
        }
    }
    failed
}

/// The number of lines of the shortest script.
fn shrink(program: &Path, seed: u64) -> Result<usize> {
    let mut run = Command::new(program);
    run.args(["--from", &seed.to_string(), "--seeds", "1", "--jobs", "1"]);
    let script = program.with_extension("script");
    let text =
        output_of(run, &script, MUTANT_TIMEOUT)?.context("the seed violates nothing alone")?;
    let mut lines = text.lines().filter(|line| !line.is_empty());
    lines.next().context("it ended without a violation")?;
    Ok(lines.filter(|line| !line.starts_with('#')).count())
}

/// Waits for all scripts, prints the long ones and those of `kept` that show no bug, and says how many are short.
pub(super) fn summary(all: Vec<Shrinking>, kept: &[PathBuf]) -> String {
    let (mut shrunk, mut shown) = (Vec::new(), Vec::new());
    for it in all {
        match it.found.join().unwrap_or_else(|_| Err(anyhow!("the thread panicked"))) {
            Ok(Found { lines, scripts }) => {
                if lines > FEW_LINES {
                    println!("{lines:>6} lines  {}", it.name);
                }
                shrunk.push(lines);
                shown.extend(scripts);
            }
            Err(error) => println!("   no script  {}: {error:#}", it.name),
        }
    }
    for script in kept.iter().filter(|script| !shown.contains(script)) {
        println!("   shows none of these bugs: {}", script.display());
    }
    shrunk.sort_unstable();
    let few = shrunk.iter().filter(|lines| **lines <= FEW_LINES).count();
    let median = shrunk.get(shrunk.len() / 2).copied().unwrap_or_default();
    format!("{few} of them shrunk to at most {FEW_LINES} lines, the median to {median}")
}
