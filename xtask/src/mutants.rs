//! `cargo xtask dst --mutants`: plants bugs in production code, one at a time, and prints after how many seeds the
//! simulation finds each.
//!
//! The code is changed in a copy of the repository, `target/mutants`.

mod table;

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use self::table::{MUTANTS, Mutant};
use crate::{shell, workspace};

/// Seeds that each mutant gets.
const SEEDS: u64 = 10_000;

/// Plants each bug whose name contains `filter`.
pub(crate) fn run(filter: &str) -> Result<()> {
    let root = workspace::root();
    let copy = root.join("target/mutants/tree");
    copy_sources(&root, &copy)?;
    let mutants: Vec<_> = MUTANTS.iter().filter(|it| it.name.contains(filter)).collect();
    let mut found = Vec::new();
    for mutant in &mutants {
        let seeds = plant(&copy, mutant)?;
        match seeds {
            Some(seeds) => {
                println!("{:>6} seeds  {}", seeds, mutant.name);
                found.push(seeds);
            }
            None => println!("   not found  {}", mutant.name),
        }
    }
    found.sort_unstable();
    let median = found.get(found.len() / 2).copied().unwrap_or_default();
    println!(
        "figure: {} of {} planted bugs found within {SEEDS} seeds, the median within {median}",
        found.len(),
        mutants.len()
    );
    ensure!(found.len() * 100 >= mutants.len() * 95, "too few planted bugs were found");
    Ok(())
}

/// The number of seeds until the bug is found.
fn plant(copy: &Path, mutant: &Mutant) -> Result<Option<u64>> {
    let path = copy.join(mutant.file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    fs::write(&path, mutant.applied_to(&text)?)?;
    let outcome = explore(copy);
    fs::write(&path, text)?;
    outcome.with_context(|| format!("mutant `{}`", mutant.name))
}

/// Runs seeds until one violates something.
fn explore(copy: &Path) -> Result<Option<u64>> {
    let cargo = |arguments: &[&str]| {
        let mut command = shell::cargo();
        command.current_dir(copy).args(arguments);
        command.env("RUSTFLAGS", "--cfg tokio_unstable --cap-lints allow");
        command.env("CARGO_TARGET_DIR", copy.with_file_name("build"));
        command
    };
    let mut build = cargo(&["build", "--release", "--locked", "--quiet", "-p", "sluicegate-dst"]);
    ensure!(build.status()?.success(), "it does not compile");
    let seeds = SEEDS.to_string();
    let mut run = cargo(&["run", "--release", "--locked", "--quiet", "-p", "sluicegate-dst", "--"]);
    let output = run.args(["--seeds", &seeds, "--no-shrink"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(None);
    }
    let seed = text.lines().find_map(|line| line.strip_prefix("seed ")?.split(':').next());
    let seed: u64 = seed.context("no seed in the output")?.parse()?;
    Ok(Some(seed + 1))
}

/// Copies the files that git knows; those that did not change keep their times, so that they are not built again.
fn copy_sources(root: &Path, copy: &Path) -> Result<()> {
    let mut list = Command::new("git");
    let files = shell::output(list.current_dir(root).arg("ls-files")).context("git failed")?;
    for file in files.lines() {
        let (from, to) = (root.join(file), copy.join(file));
        let Ok(text) = fs::read(&from) else { continue };
        if fs::read(&to).is_ok_and(|old| old == text) {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
        fs::write(&to, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_apply_to_the_sources() {
        for mutant in MUTANTS {
            let text = fs::read_to_string(workspace::root().join(mutant.file)).unwrap();
            assert_ne!(mutant.applied_to(&text).unwrap(), text, "{}", mutant.name);
        }
    }
}
