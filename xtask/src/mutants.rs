//! `cargo xtask dst --mutants`: plants bugs in production code, one at a time, and prints after how many seeds the
//! simulation finds each, and how short the script is to which it shrinks the violation.
//!
//! The code is changed in a copy of the repository, `target/mutants`.

mod algorithms;
mod cluster;
mod decisions;
mod library;
mod mutant;
mod rules;
mod run;
mod server;
mod shrinking;
mod store;
mod table;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use self::{
    mutant::Mutant,
    run::{MUTANT_TIMEOUT, output_of},
    shrinking::Shrinking,
};
use crate::{shell, workspace};

/// Seeds that each mutant gets.
const SEEDS: u64 = 10_000;

/// All bugs, each with the only kinds of plans that can find it, unless all can.
fn all() -> impl Iterator<Item = (&'static Mutant, Option<&'static str>)> {
    let groups = [
        (store::MUTANTS, Some("processes,cluster")),
        (cluster::MUTANTS, Some("cluster")),
        (table::MUTANTS, Some("table")),
        (library::MUTANTS, Some("processes,cluster")),
        (server::MUTANTS, Some("server")),
        (rules::MUTANTS, Some("server")),
        (algorithms::MUTANTS, None),
        (decisions::MUTANTS, None),
    ];
    groups.into_iter().flat_map(|(mutants, only)| mutants.iter().map(move |it| (it, only)))
}

/// Plants each bug whose name contains `filter`.
pub(crate) fn run(filter: &str) -> Result<()> {
    let root = workspace::root();
    let copy = root.join("target/mutants/tree");
    copy_sources(&root, &copy)?;
    let mutants: Vec<_> = all().filter(|it| it.0.name.contains(filter)).collect();
    let scripts = fs::read_dir(root.join("crates/dst/scripts"))?;
    let scripts: Vec<_> = scripts.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let (mut found, mut shrinking) = (Vec::new(), Vec::new());
    for &(mutant, only) in &mutants {
        match plant(&copy, mutant, only) {
            Ok(Some(seeds)) => {
                println!("{seeds:>6} seeds  {}", mutant.name);
                found.push(seeds);
                // While the next bug is planted and searched.
                shrinking.push(Shrinking::begin(
                    mutant.name,
                    seeds - 1,
                    &program(&copy),
                    shrinking.len(),
                    &scripts,
                )?);
            }
            Ok(None) => println!("   not found  {}", mutant.name),
            Err(error) => println!("   not found  {}: {error:#}", mutant.name),
        }
    }
    // One bug alone does not show each of them.
    let kept = if filter.is_empty() { &scripts[..] } else { &[] };
    let shrunk = shrinking::summary(shrinking, kept);
    found.sort_unstable();
    let median = found.get(found.len() / 2).copied().unwrap_or_default();
    println!(
        "figure: {} of {} planted bugs found within {SEEDS} seeds, the median within {median}; {shrunk}",
        found.len(),
        mutants.len()
    );
    ensure!(found.len() * 100 >= mutants.len() * 95, "too few planted bugs were found");
    Ok(())
}

/// The number of seeds until the bug is found.
fn plant(copy: &Path, mutant: &Mutant, only: Option<&str>) -> Result<Option<u64>> {
    let path = copy.join(mutant.file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    fs::write(&path, mutant.applied_to(&text)?)?;
    let outcome = explore(copy, only);
    fs::write(&path, text)?;
    outcome.with_context(|| format!("mutant `{}`", mutant.name))
}

/// Runs seeds until one violates something.
fn explore(copy: &Path, only: Option<&str>) -> Result<Option<u64>> {
    let mut build = shell::cargo();
    build.current_dir(copy).args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "-p",
        "sluicegate-dst",
    ]);
    build.env("RUSTFLAGS", "--cfg tokio_unstable --cap-lints allow");
    build.env("CARGO_TARGET_DIR", copy.with_file_name("build"));
    // Built again for each bug, and run for seconds.
    build.env("CARGO_PROFILE_RELEASE_INCREMENTAL", "true");
    build.env("CARGO_PROFILE_RELEASE_LTO", "off");
    build.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "64");
    ensure!(build.status()?.success(), "it does not compile");

    let mut run = Command::new(program(copy));
    run.args(["--seeds", &SEEDS.to_string(), "--no-shrink", "--jobs", "2"]);
    run.args(only.iter().flat_map(|kinds| ["--only", kinds]));
    let Some(text) = output_of(run, &copy.with_file_name("output"), MUTANT_TIMEOUT)? else {
        return Ok(None);
    };
    let seed = text.lines().find_map(|line| line.strip_prefix("seed ")?.split(':').next());
    let seed: u64 = seed.context("it ended without a seed")?.parse()?;
    Ok(Some(seed + 1))
}

/// The simulation with the bug that is planted last.
fn program(copy: &Path) -> PathBuf {
    copy.with_file_name("build").join("release/sluicegate-dst")
}

/// Copies the files under version control; those that did not change keep their times, so that they are not built
/// again.
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
        for (mutant, _) in all() {
            let text = fs::read_to_string(workspace::root().join(mutant.file)).unwrap();
            assert_ne!(mutant.applied_to(&text).unwrap(), text, "{}", mutant.name);
        }
    }
}
