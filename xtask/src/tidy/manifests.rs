//! One package per role, with all settings from the workspace.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use cargo_metadata::Metadata;

use super::{arrows::role, files::relative, findings::Findings};

/// Settings that every manifest takes from the workspace.
const INHERITED: [&str; 4] = ["version", "edition", "rust-version", "license"];

pub(super) fn check(metadata: &Metadata, root: &Path, findings: &mut Findings) -> Result<()> {
    for package in metadata.workspace_packages() {
        let manifest = package.manifest_path.as_std_path();
        let folder = relative(manifest.parent().unwrap_or(root), root);
        let expected = expected_folder(&package.name);
        if folder != expected {
            findings.error(format!("package `{}` is in {folder}, not {expected}", package.name));
        }
        let description = package.description.as_deref().unwrap_or_default();
        if description.trim().len() < 10 {
            findings.error(format!("{folder}/Cargo.toml has no `description` that says anything"));
        }
        let text = fs::read_to_string(manifest)
            .with_context(|| format!("{} cannot be read", manifest.display()))?;
        for fault in faults(&text) {
            findings.error(format!("{folder}/Cargo.toml {fault}"));
        }
    }
    Ok(())
}

/// Folder of a package. An invalid name gets a folder that cannot exist.
fn expected_folder(package: &str) -> String {
    match package {
        "xtask" => "xtask".to_owned(),
        "sluicegate" => "crates/sluicegate".to_owned(),
        _ if package.starts_with("sluicegate-") => format!("crates/{}", role(package)),
        _ => format!("crates (as `sluicegate-{package}`)"),
    }
}

/// Settings that a manifest does not take from the workspace.
fn faults(manifest: &str) -> Vec<String> {
    let lines: Vec<_> = manifest.lines().map(|line| line.replace(' ', "")).collect();
    let inherits = |line: &str| lines.iter().any(|it| it == line);
    let mut faults: Vec<_> = INHERITED
        .iter()
        .filter(|name| !inherits(&format!("{name}.workspace=true")))
        .map(|name| format!("has no line `{name}.workspace = true`"))
        .collect();
    if !lines.windows(2).any(|pair| pair == ["[lints]", "workspace=true"]) {
        faults.push("has no `[lints]` with `workspace = true`".to_owned());
    }
    if lines.iter().any(|line| line == "[features]") {
        faults.push("has `[features]`: backends and protocols are crates and files".to_owned());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_folder_is_the_role() {
        assert_eq!(expected_folder("sluicegate-core"), "crates/core");
        assert_eq!(expected_folder("sluicegate"), "crates/sluicegate");
        assert_eq!(expected_folder("xtask"), "xtask");
        assert_eq!(expected_folder("core"), "crates (as `sluicegate-core`)");
    }

    #[test]
    fn faults_own_setting_is_found() {
        let good = "[package]\nversion.workspace = true\nedition.workspace=true\n\
                    rust-version.workspace = true\nlicense.workspace = true\n\
                    [lints]\nworkspace = true\n";
        assert_eq!(faults(good), Vec::<String>::new());
        let own = good.replace("edition.workspace=true", "edition = \"2021\"");
        assert_eq!(faults(&own), ["has no line `edition.workspace = true`"]);
        let lax = good.replace("[lints]\nworkspace = true\n", "");
        assert_eq!(faults(&lax), ["has no `[lints]` with `workspace = true`"]);
        let flags = format!("{good}[features]\nfast = []\n");
        assert_eq!(faults(&flags).len(), 1);
    }
}
