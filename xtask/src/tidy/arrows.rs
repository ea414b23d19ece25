//! Allowed dependencies between the crates. Arrows point one way, so that each crate can be read, built
//! and tested without its users.

use cargo_metadata::{DependencyKind, Metadata};

use super::findings::Findings;

/// Each role with the roles that it may use. Test crates are only in the list of `bench`: elsewhere they are
/// dev-dependencies, of any crate.
pub(super) const ARROWS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("resp", &[]),
    ("proto", &[]),
    ("commands", &["core"]),
    ("conformance", &["core"]),
    ("testing", &[]),
    ("simulator", &["core", "headers"]),
    ("plot", &[]),
    ("memory", &["core"]),
    ("fallback", &["core", "memory"]),
    ("redis", &["core", "commands", "fallback", "memory"]),
    ("module", &["core", "commands"]),
    ("headers", &["core"]),
    ("holds", &["core"]),
    ("rules", &["core", "headers"]),
    ("tower", &["core", "headers", "holds"]),
    (
        "server",
        &["core", "commands", "headers", "holds", "proto", "resp", "rules", "memory", "redis"],
    ),
    ("sluicegate", &["core", "holds", "memory"]),
    ("python", &["core", "headers", "holds", "redis", "sluicegate"]),
    ("wasm", &["core", "fallback", "headers", "memory"]),
    (
        "cli",
        &["core", "resp", "commands", "rules", "simulator", "plot", "memory", "redis", "server"],
    ),
    (
        "bench",
        &[
            "core",
            "proto",
            "resp",
            "rules",
            "memory",
            "redis",
            "simulator",
            "server",
            "sluicegate",
            "testing",
            "tower",
        ],
    ),
    ("dst", &["core", "memory", "resp", "redis", "holds", "sluicegate", "server", "conformance"]),
    ("xtask", &[]),
];

/// Further roles that the tests and examples of a role may use.
const IN_TESTS: &[(&str, &[&str])] =
    &[("redis", &["sluicegate"]), ("tower", &["sluicegate", "redis"])];

/// Crates that only tests use.
const FOR_TESTS: [&str; 2] = ["conformance", "testing"];

pub(super) fn check(metadata: &Metadata, findings: &mut Findings) {
    let packages = metadata.workspace_packages();
    for package in &packages {
        for dependency in &package.dependencies {
            if packages.iter().any(|it| *it.name == *dependency.name)
                && let Some(error) =
                    fault(role(&package.name), role(&dependency.name), dependency.kind)
            {
                findings.error(error);
            }
        }
    }
}

/// `core` for `sluicegate-core`.
pub(super) fn role(package: &str) -> &str {
    package.strip_prefix("sluicegate-").unwrap_or(package)
}

/// The error if `from` may not use `to`.
fn fault(from: &str, to: &str, kind: DependencyKind) -> Option<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(role, _)| *role == from) else {
        return Some(format!("crate `{from}` is not in the table of xtask/src/tidy/arrows.rs"));
    };
    if FOR_TESTS.contains(&to) && !allowed.contains(&to) {
        let fits = kind == DependencyKind::Development;
        return (!fits).then(|| format!("`{from}` uses `{to}`, a dev-dependency only"));
    }
    let in_tests = kind == DependencyKind::Development
        && IN_TESTS.iter().any(|(role, uses)| *role == from && uses.contains(&to));
    (!in_tests && !allowed.contains(&to)).then(|| {
        let allowed = if allowed.is_empty() {
            "no crate of this workspace".to_owned()
        } else {
            allowed.join(", ")
        };
        format!("`{from}` uses `{to}`; it may use: {allowed}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_reversed_arrow_is_found() {
        assert_eq!(fault("memory", "core", DependencyKind::Normal), None);
        assert!(fault("core", "memory", DependencyKind::Normal).is_some());
        assert!(fault("core", "memory", DependencyKind::Development).is_some());
        assert!(fault("unheard-of", "core", DependencyKind::Normal).is_some());
    }

    #[test]
    fn fault_test_crate_is_only_a_dev_dependency() {
        assert_eq!(fault("core", "conformance", DependencyKind::Development), None);
        assert!(fault("memory", "conformance", DependencyKind::Normal).is_some());
        assert!(fault("memory", "conformance", DependencyKind::Build).is_some());
        assert!(fault("redis", "testing", DependencyKind::Normal).is_some());
        assert_eq!(fault("redis", "testing", DependencyKind::Development), None);
        assert_eq!(fault("bench", "testing", DependencyKind::Normal), None);
    }

    #[test]
    fn fault_tests_of_tower_may_use_the_library() {
        assert_eq!(fault("tower", "sluicegate", DependencyKind::Development), None);
        assert!(fault("tower", "sluicegate", DependencyKind::Normal).is_some());
        assert!(fault("core", "sluicegate", DependencyKind::Development).is_some());
        assert!(fault("sluicegate", "redis", DependencyKind::Normal).is_some());
    }

    #[test]
    fn arrows_table_has_no_circle() {
        // In some order, every crate comes after all that it uses.
        let mut placed: Vec<&str> = Vec::new();
        while placed.len() < ARROWS.len() {
            let ready = |(role, uses): &&(&str, &[&str])| {
                let in_tests = IN_TESTS.iter().filter(|(it, _)| it == role).flat_map(|it| it.1);
                !placed.contains(role) && uses.iter().chain(in_tests).all(|it| placed.contains(it))
            };
            let (role, _) = ARROWS.iter().find(ready).expect("no circle");
            placed.push(role);
        }
    }
}
