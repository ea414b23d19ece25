//! `cargo xtask fuzz`: cargo-fuzz over the targets in `fuzz/`.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{shell, workspace};

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (target, seconds) = parse(arguments)?;
    let root = workspace::root();
    let targets = targets(&root.join("fuzz/fuzz_targets"))?;
    let chosen: Vec<_> = match target {
        Some(target) if targets.iter().any(|known| known == target) => vec![target],
        Some(target) => {
            bail!("fuzz target `{target}` is unknown; there are: {}", targets.join(", "))
        }
        None => targets.iter().map(String::as_str).collect(),
    };
    if !shell::exists("cargo-fuzz") {
        bail!("cargo-fuzz is missing; `cargo install --locked cargo-fuzz` installs it");
    }

    let mut failed = Vec::new();
    for target in chosen {
        let mut command = shell::cargo();
        command.current_dir(&root).args(["fuzz", "run"]);
        if !nightly() {
            // The address sanitizer needs a nightly compiler; our code is safe Rust, and panics
            // are found without it.
            command.args(["--sanitizer", "none"]);
        }
        // New inputs go to the first folder; the committed corpus is only read.
        let found = root.join("target/fuzz-corpus").join(target);
        fs::create_dir_all(&found)?;
        command.arg(target).arg(found).arg(root.join("fuzz/corpus").join(target));
        command.args(["--", &format!("-max_total_time={seconds}")]);
        if let Err(error) = shell::run(&mut command) {
            println!("{error:#}");
            failed.push(target);
        }
    }
    if !failed.is_empty() {
        bail!("these failed: {}", failed.join(", "));
    }
    Ok(())
}

/// The target, if one is given, and the seconds.
fn parse<'a>(arguments: &[&'a str]) -> Result<(Option<&'a str>, u64)> {
    let (target, rest) = match arguments {
        [target, rest @ ..] if !target.starts_with('-') => (Some(*target), rest),
        _ => (None, arguments),
    };
    let seconds = match rest {
        [] => 60,
        ["--seconds", seconds] => seconds
            .parse()
            .with_context(|| format!("--seconds `{seconds}` is not a whole number of seconds"))?,
        _ => bail!("unknown arguments `{}`: expected `[TARGET] [--seconds N]`", rest.join(" ")),
    };
    Ok((target, seconds))
}

/// The names of the files in `folder`.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let mut targets = Vec::new();
    for file in fs::read_dir(folder).with_context(|| format!("{} is missing", folder.display()))? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            targets.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    targets.sort();
    Ok(targets)
}

fn nightly() -> bool {
    shell::output(Command::new("rustc").arg("--version")).is_some_and(|it| it.contains("nightly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_a_target_and_a_time() {
        assert_eq!(parse(&[]).unwrap(), (None, 60));
        assert_eq!(parse(&["resp"]).unwrap(), (Some("resp"), 60));
        assert_eq!(parse(&["--seconds", "5"]).unwrap(), (None, 5));
        assert_eq!(parse(&["resp", "--seconds", "5"]).unwrap(), (Some("resp"), 5));
        assert!(parse(&["resp", "--seconds", "soon"]).is_err());
        assert!(parse(&["resp", "trace"]).is_err());
    }
}
