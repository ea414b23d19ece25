//! deny.toml allows the licence of every dependency, and each published package has the texts of its own.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use cargo_metadata::Metadata;

use super::{files::relative, findings::Findings};

/// The texts of our licences, in the root.
const TEXTS: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

pub(super) fn check(metadata: &Metadata, root: &Path, findings: &mut Findings) -> Result<()> {
    let settings = fs::read_to_string(root.join("deny.toml")).context("deny.toml is missing")?;
    let allowed = allowed(&settings).context("deny.toml has no `allow` under `[licenses]`")?;
    for package in &metadata.packages {
        let name = format!("`{}` {}", package.name, package.version);
        match package.license.as_deref() {
            None => findings.error(format!("{name} states no licence")),
            Some(licence) if !satisfied(licence, &allowed) => findings.error(format!(
                "{name} is under `{licence}`, which the list in deny.toml does not allow"
            )),
            Some(_) => {}
        }
    }
    check_texts(metadata, root, findings)
}

/// `cargo package` takes no file from above the folder of a package.
fn check_texts(metadata: &Metadata, root: &Path, findings: &mut Findings) -> Result<()> {
    for text in TEXTS {
        let expected = fs::read(root.join(text)).with_context(|| text.to_owned())?;
        let packages = metadata.workspace_packages().into_iter();
        for package in packages.filter(|it| it.publish.as_ref().is_none_or(|to| !to.is_empty())) {
            let path = package.manifest_path.with_file_name(text).into_std_path_buf();
            if fs::read(&path).ok().as_ref() != Some(&expected) {
                let path = relative(&path, root);
                findings.error(format!("{path}: expected a symbolic link to the file in the root"));
            }
        }
    }
    Ok(())
}

/// The list `allow` under `[licenses]`.
fn allowed(settings: &str) -> Option<Vec<&str>> {
    let (_, section) = settings.split_once("\n[licenses]\n")?;
    let section = section.split_once("\n[").map_or(section, |(section, _)| section);
    let (_, list) = section.split_once("allow = [")?;
    let (list, _) = list.split_once(']')?;
    Some(list.split('"').skip(1).step_by(2).collect())
}

/// Whether `allowed` satisfies the licence `expression` (SPDX, or the older `MIT/Apache-2.0`). Parentheses are read as if
/// AND held its sides together less than OR, which never accepts more. An exception only ever gives more rights.
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], "");
    let is_allowed = |licence: &str| {
        let name = licence.split(" WITH ").next().unwrap_or_default();
        allowed.contains(&name.trim())
    };
    plain.split(" AND ").all(|choices| choices.split(" OR ").any(is_allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn satisfied_follows_spdx() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 OR MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR GPL-3.0) AND (GPL-3.0 OR ISC)", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("", false),
            ("MIT OR", false),
            ("MIT GPL-3.0", false),
        ] {
            assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
        }
    }

    #[test]
    fn allowed_reads_the_list_of_licences() {
        let settings =
            "# x\n[licenses]\n# why\nallow = [\n    \"MIT\",\n    \"ISC\",\n]\n\n[bans]\n";
        assert_eq!(allowed(settings), Some(vec!["MIT", "ISC"]));
        assert_eq!(allowed("\n[licenses]\n\n[bans]\nallow = [\"MIT\"]\n"), None);
    }
}
