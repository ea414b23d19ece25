//! What no file may contain: names of one machine, more bytes than a source or a picture needs, and, in Rust, what
//! `ARCHITECTURE.md` and `CONTRIBUTING.md` promise to be absent.

use super::{code::code_of, files::RepoFile, findings::Findings};

/// Maximum size of a file in bytes, because every clone fetches all history. The largest picture has an eighth of it.
const MAX_BYTES: usize = 1 << 20;

/// Paths and hosts that only one machine or network has, in two halves, so that this file does not find itself.
const MACHINE_PATHS: [(&str, &str); 11] = [
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("/wo", "rk/"),
    ("py", "pi.org"),
    ("python", "hosted.org"),
    ("registry.", "npmjs.org"),
    ("index.", "crates.io"),
    ("static.", "crates.io"),
    ("deb.", "debian.org"),
    ("proxy.", "golang.org"),
];

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
/// What no test has: it waits for a condition (`eventually`), or its time is an argument.
const NO_TEST: [&str; 3] = ["thread::sleep", "time::sleep", "#[ignore"];

pub(super) fn check(files: &[RepoFile], findings: &mut Findings) {
    for RepoFile { path, bytes, text } in files {
        if *bytes > MAX_BYTES {
            findings.error(format!("{path} has {bytes} bytes: expected at most {MAX_BYTES}"));
        }
        for (line, fault) in text.iter().flat_map(|text| faults(path, text)) {
            findings.error(format!("{path}:{line}: {fault}"));
        }
    }
}

/// Faults in a file, with their lines.
fn faults(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    let machine = MACHINE_PATHS.map(|(first, second)| format!("{first}{second}"));
    for (line, text) in (1..).zip(text.lines()) {
        let found = machine.iter().find(|it| text.contains(*it));
        faults.extend(found.map(|it| (line, format!("names `{it}`, which others do not have"))));
    }
    if !path.ends_with(".rs") {
        return faults;
    }
    let code = code_of(text);
    let role = path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
    let is_pure = role.is_some_and(|(role, _)| PURE.contains(&role));
    let tests = first_line_of_tests(path, &code);
    for (line, code) in (1..).zip(code.lines()) {
        let found = |names: &'static [&str]| names.iter().find(|it| code.contains(**it));
        if line >= tests {
            faults.extend(found(&NO_TEST).map(|it| (line, format!("a test has `{it}`"))));
        } else if is_pure {
            faults.extend(found(&IMPURE).map(|it| (line, format!("a pure crate has `{it}`"))));
        }
    }
    faults
}

/// The line where the tests of a file begin: the module that only tests have, which is its last.
fn first_line_of_tests(path: &str, code: &str) -> usize {
    if path.contains("/tests/") || path.ends_with("/tests.rs") {
        return 1;
    }
    let is_module = |at: &usize| {
        let item = code[*at..].split_once(']').map_or("", |(_, item)| item.trim_start());
        item.starts_with("mod ") && item.find('{').is_some_and(|open| !item[..open].contains(';'))
    };
    let start = code.match_indices("#[cfg(test)]").map(|(at, _)| at).find(is_module);
    start.map_or(usize::MAX, |at| 1 + code[..at].matches('\n').count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        faults(path, text).into_iter().map(|(line, fault)| format!("{line}: {fault}")).collect()
    }

    #[test]
    fn faults_impure_name_in_a_pure_crate_is_found() {
        let code =
            "#[cfg(test)]\nmod tests;\nuse std::thread;\n#[cfg(test)]\nmod more { use std::fs; }\n";
        assert_eq!(found("crates/core/src/a.rs", code), ["3: a pure crate has `std::thread`"]);
        assert_eq!(found("crates/server/src/a.rs", code), [""; 0]);
        assert_eq!(found("crates/core/src/a/tests.rs", code), [""; 0]);
        assert_eq!(found("crates/core/tests/it/a.rs", code), [""; 0]);
        assert_eq!(found("crates/core/src/a.rs", "// std::fs\n\"tokio\""), [""; 0]);
    }

    #[test]
    fn faults_ignored_or_sleeping_test_is_found() {
        let ignored = "#[test]\n#[ignore = \"slow\"]\nfn f() {}";
        assert_eq!(found("crates/a/tests/it/b.rs", ignored), ["2: a test has `#[ignore`"]);
        let mixed = "fn f() { thread::sleep(x) }\n#[cfg(test)]\nmod tests { thread::sleep(x) }";
        assert_eq!(found("crates/a/src/b.rs", mixed), ["3: a test has `thread::sleep`"]);
    }

    #[test]
    fn faults_path_of_a_machine_is_found() {
        let home = format!("a\n/{}/someone/.cargo", "home");
        let expected = format!("2: names `/{}/`, which others do not have", "home");
        assert_eq!(found("README.md", &home), [expected]);
    }

    #[test]
    fn check_file_over_the_maximum_is_found() {
        let of = |path: &str, bytes| RepoFile { path: path.to_owned(), bytes, text: None };
        let mut findings = Findings::default();
        check(&[of("picture.png", MAX_BYTES), of("core", MAX_BYTES + 1)], &mut findings);
        assert_eq!(findings.errors, ["core has 1048577 bytes: expected at most 1048576"]);
    }
}
