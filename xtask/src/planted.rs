//! `cargo xtask dst --planted`: plants bugs in production code, one at a time, and prints after how many seeds the
//! simulation finds each.
//!
//! The bugs are those of `crates/dst/planted.toml`, or of another file of the same form. The code is changed in a copy of
//! the repository, in the folder for temporary files. A bug is found by the first seed that violates something with it and
//! nothing without it.

use std::{
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{shell, workspace};

const FILE: &str = "crates/dst/planted.toml";

/// The number of seeds and seconds that each bug gets, unless an option says otherwise.
const SEEDS: u64 = 10_000;
const SECONDS: u64 = 300;

/// A bug: in a file, some text in place of other text, which occurs once.
struct Bug {
    name: String,
    file: String,
    from: String,
    to: String,
}

/// What a search of a bug ends with.
enum Search {
    /// After this number of seeds, by a violation of this kind.
    Found(u64, String),
    Missed,
}

impl Bug {
    /// The bugs of a file.
    fn all(path: &Path) -> Result<Vec<Self>> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let table: toml::Table = text.parse().with_context(|| path.display().to_string())?;
        let bugs = table.get("bug").and_then(toml::Value::as_array).context("expected [[bug]]")?;
        let bug = |value: &toml::Value| {
            let field = |name| {
                let text = value.get(name).and_then(toml::Value::as_str);
                text.map(str::to_owned).with_context(|| format!("{value:?}: expected `{name}`"))
            };
            let (name, file) = (field("name")?, field("file")?);
            Ok(Self { name, file, from: field("from")?, to: field("to")? })
        };
        bugs.iter().map(bug).collect()
    }

    /// The text of its file with the bug.
    fn applied_to(&self, text: &str) -> Result<String> {
        let count = text.matches(&self.from).count();
        ensure!(count == 1, "{} has its text {count} times: expected once", self.file);
        Ok(text.replacen(&self.from, &self.to, 1))
    }
}

/// Plants the bugs that the arguments name, and prints how many are found.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (mut seeds, mut seconds, mut which) = (SEEDS, SECONDS, "");
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|it| it.parse().ok());
        match *word {
            "--seeds" => seeds = number().context("expected a number after --seeds")?,
            "--seconds" => seconds = number().context("expected a number after --seconds")?,
            word if word.starts_with("--") => bail!("unknown option `{word}`"),
            word => which = word,
        }
    }
    let root = workspace::root();
    let is_file = Path::new(which).is_file();
    let bugs = Bug::all(&if is_file { PathBuf::from(which) } else { root.join(FILE) })?;
    let bugs: Vec<_> = bugs.into_iter().filter(|it| is_file || it.name.contains(which)).collect();
    ensure!(
        !bugs.is_empty(),
        "unknown bug `{which}`: expected a file, or a part of a name of {FILE}"
    );

    let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let copy = env::temp_dir().join(format!("sluicegate-planted-{name}/tree"));
    copy_sources(&root, &copy)?;
    build(&copy).context("without a bug")?;
    let unchanged = copy.with_file_name("unchanged");
    fs::copy(program(&copy), &unchanged)?;
    let mut found = Vec::new();
    for bug in &bugs {
        match plant(&copy, bug, &unchanged, (seeds, Duration::from_secs(seconds))) {
            Ok(Search::Found(seeds, kind)) => {
                println!("{seeds:>7} seeds  {kind:<12} {}", bug.name);
                found.push(seeds);
            }
            Ok(Search::Missed) => println!("    not found  {:<12} {}", "", bug.name),
            Err(error) => println!("    not tried  {:<12} {}: {error:#}", "", bug.name),
        }
    }
    found.sort_unstable();
    println!(
        "figure: {} of {} planted bugs found within {seeds} seeds or {seconds} s each, the median within {}",
        found.len(),
        bugs.len(),
        found.get(found.len() / 2).copied().unwrap_or_default()
    );
    Ok(())
}

/// Searches a bug in the copy.
fn plant(copy: &Path, bug: &Bug, unchanged: &Path, limits: (u64, Duration)) -> Result<Search> {
    let path = copy.join(&bug.file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    fs::write(&path, bug.applied_to(&text)?)?;
    let built = build(copy);
    fs::write(&path, text)?;
    built?;
    search(&program(copy), unchanged, limits)
}

/// Runs seeds until one violates something that it does not without the bug.
#[expect(clippy::disallowed_methods, reason = "a search that lasts for too long is stopped")]
fn search(program: &Path, unchanged: &Path, (seeds, limit): (u64, Duration)) -> Result<Search> {
    let (begin, mut from) = (Instant::now(), 0);
    while from < seeds {
        let left = limit.saturating_sub(begin.elapsed());
        let Some(violation) = violation(program, from, seeds - from, left)? else {
            return Ok(Search::Missed);
        };
        let (seed, text) = violation.split_once(": ").context("it ended without a seed")?;
        let seed: u64 = seed.parse()?;
        from = seed + 1;
        if self::violation(unchanged, seed, 1, limit)?.is_none() {
            let kind = text.split(": ").nth(1).unwrap_or(text);
            return Ok(Search::Found(from, kind.to_owned()));
        }
        println!("                             (seed {seed} violates something without the bug)");
    }
    Ok(Search::Missed)
}

/// The first violation of these seeds, with its seed; `None` if nothing was violated within `limit`.
fn violation(program: &Path, from: u64, seeds: u64, limit: Duration) -> Result<Option<String>> {
    let (output, mut run) = (program.with_extension("output"), Command::new(program));
    run.args(["--from", &from.to_string(), "--seeds", &seeds.to_string()]);
    run.args(["--no-shrink", "--jobs", "2"]);
    let mut child = run.stdout(fs::File::create(&output)?).stderr(Stdio::null()).spawn()?;
    let Some(status) = wait_for(&mut child, limit)? else {
        child.kill()?;
        child.wait()?;
        return Ok(None);
    };
    if status.success() {
        return Ok(None);
    }
    let text = fs::read_to_string(output)?;
    let seed = text.lines().find_map(|line| line.strip_prefix("seed "));
    Ok(Some(seed.with_context(|| format!("it ended without a seed: {status}"))?.to_owned()))
}

/// How a program ended; `None` if it has not within `limit`.
#[expect(clippy::disallowed_methods, reason = "a program that a bug keeps from ending is stopped")]
fn wait_for(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

fn build(copy: &Path) -> Result<()> {
    let mut build = shell::cargo();
    build.current_dir(copy).args(["build", "--profile", "simulation", "--locked", "--quiet"]);
    build.args(["-p", "sluicegate-dst"]);
    build.env("RUSTFLAGS", "--cfg tokio_unstable --cap-lints allow");
    build.env("CARGO_TARGET_DIR", copy.with_file_name("build"));
    ensure!(build.status()?.success(), "it does not compile");
    Ok(())
}

/// The simulation that was built last.
fn program(copy: &Path) -> PathBuf {
    copy.with_file_name("build").join("simulation/sluicegate-dst")
}

/// Copies the files under version control; those that did not change keep their times, so that they are not built
/// again. Removes files that are gone.
fn copy_sources(root: &Path, copy: &Path) -> Result<()> {
    let mut list = Command::new("git");
    let files = shell::output(list.current_dir(root).arg("ls-files")).context("git failed")?;
    let mut copied = HashSet::new();
    for file in files.lines() {
        let (from, to) = (root.join(file), copy.join(file));
        let Ok(text) = fs::read(&from) else { continue };
        if !fs::read(&to).is_ok_and(|old| old == text) {
            fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
            fs::write(&to, text)?;
        }
        copied.insert(to);
    }
    remove_others(copy, &copied)
}

/// Removes the files of a folder that are not among `copied`.
fn remove_others(folder: &Path, copied: &HashSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, copied)?;
        } else if !copied.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_bugs_apply_to_the_sources() {
        let bugs = Bug::all(&workspace::root().join(FILE)).unwrap();
        assert!(bugs.len() >= 40, "{}", bugs.len());
        for bug in bugs {
            let text = fs::read_to_string(workspace::root().join(&bug.file)).unwrap();
            let changed = bug.applied_to(&text).with_context(|| bug.name.clone()).unwrap();
            assert_ne!(changed, text, "{}", bug.name);
        }
    }
}
