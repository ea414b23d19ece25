//! One version of each direct dependency.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::Metadata;

use super::findings::Findings;

/// Dependencies with two versions, each with the reason.
const LISTED: &[(&str, &str)] = &[];

pub(super) fn check(metadata: &Metadata, findings: &mut Findings) {
    let Some(resolve) = &metadata.resolve else { return };
    let mut used: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for node in resolve.nodes.iter().filter(|it| metadata.workspace_members.contains(&it.id)) {
        for id in &node.dependencies {
            let package = &metadata[id];
            let version = &package.version;
            let line = compatible(version.major, version.minor, version.patch);
            used.entry(package.name.as_str()).or_default().insert(line);
        }
    }
    for (name, lines) in used {
        if lines.len() > 1 && !LISTED.iter().any(|(listed, _)| *listed == name) {
            let lines: Vec<_> = lines.into_iter().collect();
            findings.error(format!("we use `{name}` in several versions: {}", lines.join(", ")));
        }
    }
}

/// The part that compatible versions share.
fn compatible(major: u64, minor: u64, patch: u64) -> String {
    match (major, minor) {
        (0, 0) => format!("0.0.{patch}"),
        (0, _) => format!("0.{minor}"),
        _ => major.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatible_follows_cargo() {
        assert_eq!(compatible(1, 2, 3), "1");
        assert_eq!(compatible(0, 2, 3), "0.2");
        assert_eq!(compatible(0, 0, 3), "0.0.3");
    }
}
