//! How much `cargo xtask test` runs. `--all` runs every test. The everyday run leaves out those that need a program that it does
//! not install, or that build one: cargo-nextest and `cargo test` alike skip tests whose path contains a text of
//! [`TESTS_OF_ALL`].

/// How much `cargo xtask test` runs and installs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Less than 20 minutes in a fresh clone: Redis, Valkey, and the Python package with the main frameworks.
    Everyday,
    /// Also what needs other programs, or takes long.
    All,
}

/// A package, a part of the paths of its tests, and what they need. No test of another package has such a path.
pub(crate) const TESTS_OF_ALL: &[(&str, &str, &str)] = &[
    ("cli", "envoy::concurrency::", "Envoy"),
    ("cli", "envoy::envoy_", "Envoy"),
    ("cli", "envoy::quota::", "Envoy"),
    ("cli", "envoy::script::", "Envoy"),
    ("cli", "envoy::spellings::", "Envoy"),
    ("cli", "platform::", "Prometheus, Node.js, proxies, Kubernetes, OpenTelemetry"),
    ("cli", "schema_document_is_true", "schemathesis"),
    ("cli", "walkthroughs::", "what readers of the walkthroughs install"),
    ("module", "cl_throttle_random_calls_", "redis-cell, which is built"),
    ("module", "clock_flapping_", "libfaketime"),
    ("module", "clock_jump_", "libfaketime"),
    ("module", "keys_of_redis_cell_are_", "redis-cell, which is built"),
    ("module", "load_after_redis_cell_", "redis-cell, which is built"),
    ("server", "::caddy_", "Caddy"),
    ("server", "client_ioredis_", "Node.js"),
    ("server", "client_iovalkey_", "Node.js"),
    ("server", "client_node_redis_", "Node.js"),
    ("server", "client_redis_py_", "redis-py"),
    ("server", "client_valkey_py_", "valkey-py"),
    ("server", "clients_page_", "Node.js, PHP, redis-py"),
    ("server", "dashboard::history::page_", "Chromium"),
    ("server", "dashboard::operator::", "Chromium"),
    ("server", "dashboard::other_origins::", "Chromium"),
    ("server", "dashboard::outage::", "Chromium"),
    ("server", "dashboard::page::", "Chromium"),
    ("server", "dashboard::pictures::", "Chromium"),
    ("server", "dashboard::rules::page_", "Chromium"),
    ("server", "metrics_promtool_", "Prometheus"),
    ("server", "http::proxies::nginx_", "nginx"),
    ("server", "http::spellings::nginx_", "nginx"),
    ("server", "::traefik_", "Traefik"),
    ("server", "wall_clock_step_", "libfaketime"),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use super::*;
    use crate::workspace;

    /// The paths of all functions in files with tests, without the modules inside of a file. Some tests are the functions that a
    /// macro calls.
    fn paths(krate: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![krate.join("src"), krate.join("tests")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|it| it == "rs") {
                    let module = module(path.strip_prefix(krate).unwrap());
                    let text = fs::read_to_string(&path).unwrap();
                    let has_tests = path.starts_with(krate.join("tests")) || text.contains("test]");
                    let names = names(&text).filter(|_| has_tests);
                    found.extend(names.map(|name| format!("{module}{name}")));
                }
            }
        }
        found
    }

    /// `tests/it/http/mod.rs` is `http::`.
    fn module(file: &Path) -> String {
        let mut parts: Vec<_> =
            file.with_extension("").iter().map(|it| it.to_string_lossy().into_owned()).collect();
        if matches!(&**parts.last().unwrap(), "mod" | "lib" | "main") {
            parts.pop();
        }
        let crates = if parts[0] == "tests" { 2 } else { 1 };
        parts.iter().skip(crates).map(|part| format!("{part}::")).collect()
    }

    fn names(text: &str) -> impl Iterator<Item = &str> {
        let names = text.split("fn ").skip(1);
        names.filter_map(|rest| rest.split(|it: char| !it.is_alphanumeric() && it != '_').next())
    }

    #[test]
    fn module_of_a_file_is_its_path_in_the_binary() {
        assert_eq!(module(Path::new("tests/it/http/mod.rs")), "http::");
        assert_eq!(module(Path::new("tests/it/main.rs")), "");
        assert_eq!(module(Path::new("src/log/reader.rs")), "log::reader::");
    }

    /// A text that no test has any more would install programs in the everyday run, and one that tests of another package
    /// have would leave these out too.
    #[test]
    fn parts_are_of_tests_of_their_package_alone() {
        let mut tests = BTreeMap::new();
        for krate in fs::read_dir(workspace::root().join("crates")).unwrap() {
            let krate = krate.unwrap();
            tests.insert(krate.file_name().into_string().unwrap(), paths(&krate.path()));
        }
        tests.insert("xtask".to_owned(), paths(&workspace::root().join("xtask")));
        for (package, part, _) in TESTS_OF_ALL {
            let has = |paths: &[String]| paths.iter().any(|it| it.contains(part));
            let found: Vec<_> = tests.iter().filter(|it| has(it.1)).map(|it| &**it.0).collect();
            assert_eq!(found, [*package], "packages with tests whose path contains `{part}`");
        }
    }
}
