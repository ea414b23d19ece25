//! Records the commit and its date for `sluicegate version`. Both are the same for every build of a commit.
//! `SLUICEGATE_BUILD_COMMIT` and `SOURCE_DATE_EPOCH` override Git; outside of Git both are unknown.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-env-changed=SLUICEGATE_BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo::rerun-if-changed=build.rs");
    // Git appends to this file whenever the commit changes.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = env::var("SLUICEGATE_BUILD_COMMIT").ok().filter(|it| !it.is_empty());
    let commit = commit.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let given = env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let seconds = given.or_else(|| git(&["log", "-1", "--format=%ct"])?.parse().ok());
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=BUILD_DATE={}", seconds.map_or("unknown".into(), date));
    println!("cargo::rustc-env=BUILD_TARGET={target}");
}

/// Git's output about the repository of this file, if it is in one of its own.
fn git(arguments: &[&str]) -> Option<String> {
    let top = Command::new("git").args(["rev-parse", "--show-prefix"]).output().ok()?;
    // In a vendor folder, the commit would be that of another project.
    if !top.status.success() || top.stdout.trim_ascii() != b"crates/cli/" {
        return None;
    }
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// The day in UTC, as `2026-01-31`.
fn date(seconds: i64) -> String {
    // Days since 0000-03-01, in eras of 400 years; years here begin in March.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", 400 * era + year + later)
}
