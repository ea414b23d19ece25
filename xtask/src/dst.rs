//! `cargo xtask dst`: deterministic simulation, `docs/testing.md`.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{shell, workspace};

/// Seeds and minutes from which a run is long.
const MANY_SEEDS: u64 = 50_000;
const MANY_MINUTES: u64 = 15;

/// Runs the simulation with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    // Takes minutes to build, and then runs a quarter more seeds a second.
    let profile = if is_long(arguments) { "production" } else { "release" };
    let mut command = shell::cargo();
    command.current_dir(workspace::root());
    command.args(["run", "--profile", profile, "--locked", "-p", "sluicegate-dst", "--"]);
    shell::run(command.args(arguments))
}

fn is_long(arguments: &[&str]) -> bool {
    let number = |option| {
        let after = arguments.iter().skip_while(|it| **it != option).nth(1);
        after.and_then(|it| it.parse().ok()).unwrap_or(0_u64)
    };
    // These runs show a figure.
    if arguments.contains(&"--three-servers") {
        return true;
    }
    match number("--minutes") {
        0 => number("--seeds") >= MANY_SEEDS,
        minutes => minutes >= MANY_MINUTES,
    }
}

/// Runs fresh seeds for two minutes. The hash of the committed files gives the first one: other files have other seeds, and
/// equal ones the same, so that a failure can be repeated.
pub(crate) fn run_fresh() -> Result<()> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["rev-parse", "HEAD^{tree}"]);
    let tree =
        shell::output(&mut git).context("fresh seeds come from a commit: expected a clone")?;
    let digits = tree.get(..12).with_context(|| format!("`{tree}` is not a hash"))?;
    let from = u64::from_str_radix(digits, 16)?.to_string();
    println!("fresh seeds from {from}");
    run(&["--minutes", "2", "--seeds", "1000000000", "--jobs", "2", "--from", &from])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_long_by_their_minutes_or_seeds() {
        assert!(is_long(&["--jobs", "2", "--seeds", "50000"]));
        assert!(!is_long(&["--seeds", "49999", "--jobs", "2"]));
        assert!(is_long(&["--minutes", "15"]));
        assert!(is_long(&["--three-servers", "--seeds", "700"]));
        assert!(!is_long(&["--minutes", "2", "--seeds", "1000000000"]));
        assert!(!is_long(&["--seeds", "many"]) && !is_long(&["--seeds"]));
        assert!(!is_long(&["--replay", "50000"]));
    }
}
