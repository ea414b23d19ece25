//! Style of Rust sources: lint exceptions have a reason, and no test sleeps or is ignored.

use super::{code::code_of, files::RepoFile, findings::Findings};

pub(super) fn check(files: &[RepoFile], findings: &mut Findings) {
    for RepoFile { path, text, .. } in files {
        // Generated code is checked against its source instead.
        let ours = path.ends_with(".rs") && !path.contains("/src/generated/");
        let Some(text) = text.as_deref().filter(|_| ours) else { continue };
        for (line, fault) in faults(path, &code_of(text)) {
            findings.error(format!("{path}:{line}: {fault}"));
        }
    }
}

/// Faults in the code of a file, with their lines.
fn faults(path: &str, code: &str) -> Vec<(usize, &'static str)> {
    let mut faults = Vec::new();
    for (offset, attribute) in attributes(code) {
        let words: Vec<_> = words(attribute).collect();
        if words.first() == Some(&"ignore") {
            faults.push((offset, "no test is ignored"));
        }
        let silences = words.iter().any(|word| ["allow", "expect"].contains(word));
        if silences && !words.contains(&"reason") {
            faults.push((offset, "an `allow` or `expect` gives its `reason`"));
        }
    }
    let tests = start_of_tests(path, code);
    for sleep in ["thread::sleep", "time::sleep"] {
        for (at, _) in code[tests..].match_indices(sleep) {
            faults.push((tests + at, "no test sleeps"));
        }
    }
    faults.sort_unstable();
    faults.into_iter().map(|(at, fault)| (1 + code[..at].matches('\n').count(), fault)).collect()
}

/// The content of every attribute, with its offset.
fn attributes(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.match_indices('#').filter_map(|(at, _)| {
        let open = code[at + 1..].strip_prefix('!').unwrap_or(&code[at + 1..]);
        let inside = open.strip_prefix('[')?;
        let mut depth = 1_usize;
        let end = inside.find(|character: char| {
            match character {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        Some((at, &inside[..end]))
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| !it.is_alphanumeric() && it != '_').filter(|word| !word.is_empty())
}

/// Offset of the tests of a file; its length if it has none.
fn start_of_tests(path: &str, code: &str) -> usize {
    if path.contains("/tests/") || path.ends_with("/tests.rs") {
        return 0;
    }
    code.find("#[cfg(test)]").unwrap_or(code.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, source: &str) -> Vec<(usize, &'static str)> {
        faults(path, &code_of(source))
    }

    #[test]
    fn faults_exception_without_reason_is_found() {
        let fault = "an `allow` or `expect` gives its `reason`";
        assert_eq!(found("a.rs", "\n#[allow(dead_code)]"), [(2, fault)]);
        assert_eq!(found("a.rs", "#![expect(\n    unused\n)]"), [(1, fault)]);
        assert_eq!(found("a.rs", "#[cfg_attr(test, allow(unused))]"), [(1, fault)]);
        assert_eq!(found("a.rs", "#[allow(unused, reason = \"so\")]"), []);
        assert_eq!(found("a.rs", "// #[allow(unused)]\nlet x = y.expect(z[0]);"), []);
    }

    #[test]
    fn faults_ignored_or_sleeping_test_is_found() {
        assert_eq!(found("a.rs", "#[test]\n#[ignore = \"slow\"]"), [(2, "no test is ignored")]);
        assert_eq!(found("crates/a/tests/it/b.rs", "std::thread::sleep(x)").len(), 1);
        assert_eq!(found("crates/a/src/b.rs", "tokio::time::sleep(x)"), []);
        let mixed = "thread::sleep(x)\n#[cfg(test)]\nmod tests { thread::sleep(x) }";
        assert_eq!(found("crates/a/src/b.rs", mixed), [(3, "no test sleeps")]);
    }

    #[test]
    fn attributes_nested_brackets_end_at_their_own() {
        let code = "#[a(b[0])] #![c] # [d] x[1]";
        assert_eq!(attributes(code).collect::<Vec<_>>(), [(0, "a(b[0])"), (11, "c")]);
    }
}
