//! Version, changelog and tag of a release say the same.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use cargo_metadata::Metadata;

use super::findings::Findings;
use crate::shell;

pub(super) fn check(metadata: &Metadata, root: &Path, findings: &mut Findings) -> Result<()> {
    let version = metadata.workspace_packages().first().context("no package")?.version.to_string();
    let changelog = fs::read_to_string(root.join("CHANGELOG.md")).context("CHANGELOG.md")?;
    let mut git = Command::new("git");
    let tags = shell::output(git.current_dir(root).args(["tag", "--points-at", "HEAD", "v*"]));
    for fault in faults(&version, &changelog, &tags.unwrap_or_default()) {
        findings.error(fault);
    }
    Ok(())
}

/// `tags`: those of this commit, one a line.
fn faults(version: &str, changelog: &str, tags: &str) -> Vec<String> {
    let sections: Vec<_> = changelog.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let released =
        sections.iter().find(|it| **it != "Unreleased").and_then(|it| it.split(' ').next());
    let mut faults = Vec::new();
    if sections.first() != Some(&"Unreleased") && released != Some(version) {
        faults.push(format!(
            "CHANGELOG.md begins with `## {}`: expected `## Unreleased` or `## {version} - DATE`, the version in Cargo.toml",
            sections.first().unwrap_or(&"")
        ));
    }
    for tag in tags.lines() {
        if tag.strip_prefix('v') != Some(version) {
            faults.push(format!(
                "this commit is tagged `{tag}`: expected `v{version}`, the version in Cargo.toml"
            ));
        }
        if released != Some(version) {
            faults.push(format!("this commit is tagged `{tag}`, and CHANGELOG.md has no section `## {version} - DATE`"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_version_changelog_and_tag_agree_finds_none() {
        assert_eq!(faults("0.1.0", "# C\n## Unreleased\n", ""), Vec::<String>::new());
        assert_eq!(faults("0.1.0", "## 0.1.0 - 2026-12-01\n", "v0.1.0"), Vec::<String>::new());
    }

    #[test]
    fn faults_one_differs_is_found() {
        let stale = faults("0.2.0", "## 0.1.0 - 2026-12-01\n", "");
        assert!(stale[0].contains("expected `## Unreleased` or `## 0.2.0 - DATE`"), "{stale:?}");
        let tag = faults("0.1.0", "## 0.1.0 - 2026-12-01\n", "v0.2.0");
        assert_eq!(
            tag,
            ["this commit is tagged `v0.2.0`: expected `v0.1.0`, the version in Cargo.toml"]
        );
        let unwritten = faults("0.1.0", "## Unreleased\n", "v0.1.0");
        assert_eq!(
            unwritten,
            ["this commit is tagged `v0.1.0`, and CHANGELOG.md has no section `## 0.1.0 - DATE`"]
        );
    }
}
