//! One package per role, with all settings from the workspace, and without feature flags.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use cargo_metadata::Metadata;

use super::{arrows::role, files::relative, findings::Findings};

/// Lines that every manifest has.
const INHERITED: [&str; 5] = [
    "version.workspace = true",
    "edition.workspace = true",
    "rust-version.workspace = true",
    "license.workspace = true",
    "[lints]\nworkspace = true",
];

pub(super) fn check(metadata: &Metadata, root: &Path, findings: &mut Findings) -> Result<()> {
    for package in metadata.workspace_packages() {
        let manifest = package.manifest_path.as_std_path();
        let path = relative(manifest, root);
        let role = role(&package.name);
        if path != format!("crates/{role}/Cargo.toml") && path != "xtask/Cargo.toml" {
            findings.error(format!("{path}: expected `{}` in crates/{role}", package.name));
        }
        let text = fs::read_to_string(manifest).with_context(|| path.clone())?;
        findings.errors.extend(faults(&text).map(|fault| format!("{path} {fault}")));
    }
    Ok(())
}

fn faults(manifest: &str) -> impl Iterator<Item = String> {
    let has = move |lines: &str| format!("\n{manifest}\n").contains(&format!("\n{lines}\n"));
    let lacks = INHERITED.iter().filter(move |lines| !has(lines));
    let lacks = lacks.map(|lines| format!("lacks `{}`", lines.replace('\n', " ")));
    let flags = has("[features]").then(|| "has `[features]`: expected crates and files".to_owned());
    lacks.chain(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_own_setting_is_found() {
        let good = format!("[package]\n{}\n", INHERITED.join("\n"));
        let found = |manifest: &str| faults(manifest).collect::<Vec<_>>();
        assert_eq!(found(&good), [""; 0]);
        let own = good.replace("edition.workspace = true", "edition = \"2021\"");
        assert_eq!(found(&own), ["lacks `edition.workspace = true`"]);
        let lax = good.replace("[lints]\nworkspace = true\n", "");
        assert_eq!(found(&lax), ["lacks `[lints] workspace = true`"]);
        assert_eq!(found(&format!("{good}[features]\nfast = []\n")).len(), 1);
    }
}
