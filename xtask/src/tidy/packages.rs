//! The library stays small: an upper bound on the packages that a user of it builds.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::findings::Findings;

/// Maximum number of packages of `sluicegate`, itself included, tests aside.
const MAX_PACKAGES: usize = 40;

pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<()> {
    // `cargo metadata` merges the features of the whole workspace; a user has those of the library.
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package=sluicegate", "--edges=normal", "--prefix=none"])
        .current_dir(root)
        .output()
        .context("cargo tree did not start")?;
    ensure!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr));
    if let Some(error) = fault(&String::from_utf8_lossy(&tree.stdout)) {
        findings.error(error);
    }
    Ok(())
}

/// The error if the tree has too many packages. A package that is repeated is marked with `(*)`.
fn fault(tree: &str) -> Option<String> {
    let packages: BTreeSet<_> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    let count = packages.len();
    (count > MAX_PACKAGES).then(|| {
        let packages = Vec::from_iter(packages).join(", ");
        format!("`sluicegate` has {count} packages: expected at most {MAX_PACKAGES}: {packages}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_counts_each_package_once() {
        let most: Vec<_> =
            (0..MAX_PACKAGES).map(|index| format!("package{index} v1.0.0")).collect();
        assert_eq!(fault(&format!("{}\npackage0 v1.0.0 (*)\n", most.join("\n"))), None);
        let error = fault(&format!("{}\nlast v1.0.0\n", most.join("\n"))).unwrap();
        assert!(error.starts_with("`sluicegate` has 41 packages: expected at most 40"), "{error}");
    }
}
