//! Absences that `ARCHITECTURE.md` promises: what production code of a crate does not mention.

use super::{code::code_of, files::RepoFile, findings::Findings};

/// Crates that know no socket, file, thread or clock, and no async runtime.
const PURE: [&str; 5] = ["core", "commands", "resp", "rules", "simulator"];
/// What these do not mention.
const IMPURE: [&str; 11] = [
    "std::net::Tcp",
    "std::net::Udp",
    "std::fs",
    "std::thread",
    "std::process",
    "tokio",
    "Instant::now",
    "SystemTime",
    "Zoned::now",
    "Timestamp::now",
    "File::open",
];

/// Files beside `module` that may contain `unsafe`. Each block there has its reason.
const UNSAFE: [&str; 6] = [
    "crates/memory/src/heap.rs",
    "crates/memory/src/page_arena.rs",
    "crates/memory/src/segment.rs",
    "crates/memory/src/shard.rs",
    "crates/memory/src/tsc.rs",
    "crates/python/src/fork.rs",
];

pub(super) fn check(files: &[RepoFile], findings: &mut Findings) {
    for RepoFile { path, text, .. } in files {
        let Some(text) = text.as_deref().filter(|_| path.ends_with(".rs")) else { continue };
        for (line, fault) in faults(path, &code_of(text)) {
            findings.error(format!("{path}:{line}: {fault}"));
        }
    }
}

/// Faults in the code of a file, with their lines.
fn faults(path: &str, code: &str) -> Vec<(usize, String)> {
    let Some((role, _)) = path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"))
    else {
        return Vec::new();
    };
    let production = production(path, code);
    let mut faults = Vec::new();
    for (index, line) in production.lines().enumerate() {
        if PURE.contains(&role) {
            let found = IMPURE.iter().find(|name| line.contains(**name));
            let fault = |name| format!("`{role}` is pure, and mentions `{name}`");
            faults.extend(found.map(|name| (index + 1, fault(name))));
        }
        let is_unsafe =
            line.split(|it: char| !it.is_alphanumeric() && it != '_').any(|it| it == "unsafe");
        if is_unsafe && role != "module" && !UNSAFE.contains(&path) {
            faults.push((index + 1, "`unsafe` is not allowed in this file".to_owned()));
        }
    }
    faults
}

/// The code of a file before its tests.
fn production<'c>(path: &str, code: &'c str) -> &'c str {
    if path.contains("/tests/") || path.ends_with("/tests.rs") {
        return "";
    }
    let is_module = |at: &usize| {
        let item = code[*at..].split_once(']').map_or("", |(_, item)| item.trim_start());
        item.starts_with("mod ") && item.find('{').is_some_and(|open| !item[..open].contains(';'))
    };
    let end = code.match_indices("#[cfg(test)]").map(|(at, _)| at).find(is_module);
    &code[..end.unwrap_or(code.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &str, code: &str) -> Vec<String> {
        faults(path, code).into_iter().map(|(line, fault)| format!("{line}: {fault}")).collect()
    }

    #[test]
    fn faults_impure_name_in_a_pure_crate_is_found() {
        let code =
            "#[cfg(test)]\nmod tests;\nuse std::thread;\n#[cfg(test)]\nmod more { use std::fs; }\n";
        let expected = ["3: `core` is pure, and mentions `std::thread`"];
        assert_eq!(texts("crates/core/src/a.rs", code), expected);
        assert_eq!(texts("crates/server/src/a.rs", code), [""; 0]);
        assert_eq!(texts("crates/core/src/a/tests.rs", code), [""; 0]);
        assert_eq!(texts("crates/core/tests/it/a.rs", code), [""; 0]);
    }

    #[test]
    fn faults_unsafe_elsewhere_is_found() {
        let code = "fn f() {\n unsafe { g() } }\nfn unsafe_g() {}";
        let expected = ["2: `unsafe` is not allowed in this file"];
        assert_eq!(texts("crates/memory/src/store.rs", code), expected);
        assert_eq!(texts("crates/memory/src/shard.rs", code), [""; 0]);
        assert_eq!(texts("crates/module/src/api.rs", code), [""; 0]);
    }
}
