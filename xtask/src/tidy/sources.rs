//! Habits of our Rust sources: short files, exceptions that give their reason, no test that waits
//! or is left out.

use super::{Findings, Source, code::code_of};

/// Lines of a file: what it should stay under, and what it must.
const AIM: usize = 400;
const MOST: usize = 500;

pub(super) fn check(files: &[Source], findings: &mut Findings) {
    for Source { path, text, .. } in files {
        // What is generated is read by nobody, and is checked against what it is made of.
        let ours = path.ends_with(".rs") && !path.contains("/src/generated/");
        let Some(text) = text.as_deref().filter(|_| ours) else { continue };
        let lines = text.lines().count();
        if path.starts_with("crates/") && path.contains("/src/") && lines > AIM {
            let told = format!("{path} has {lines} lines; one idea is usually under {AIM}");
            if lines > MOST { findings.error(told) } else { findings.note(told) }
        }
        for (line, fault) in faults(path, &code_of(text)) {
            findings.error(format!("{path}:{line}: {fault}"));
        }
    }
}

/// What is wrong with the code of a file, and in which lines.
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

/// The inside of every attribute, with where it begins.
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

/// Where the tests of a file begin: at its end if it has none.
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
    fn exceptions_give_their_reason() {
        let fault = "an `allow` or `expect` gives its `reason`";
        assert_eq!(found("a.rs", "\n#[allow(dead_code)]"), [(2, fault)]);
        assert_eq!(found("a.rs", "#![expect(\n    unused\n)]"), [(1, fault)]);
        assert_eq!(found("a.rs", "#[cfg_attr(test, allow(unused))]"), [(1, fault)]);
        assert_eq!(found("a.rs", "#[allow(unused, reason = \"so\")]"), []);
        assert_eq!(found("a.rs", "// #[allow(unused)]\nlet x = y.expect(z[0]);"), []);
    }

    #[test]
    fn no_test_is_ignored_and_none_sleeps() {
        assert_eq!(found("a.rs", "#[test]\n#[ignore = \"slow\"]"), [(2, "no test is ignored")]);
        assert_eq!(found("crates/a/tests/it/b.rs", "std::thread::sleep(x)").len(), 1);
        assert_eq!(found("crates/a/src/b.rs", "tokio::time::sleep(x)"), []);
        let mixed = "thread::sleep(x)\n#[cfg(test)]\nmod tests { thread::sleep(x) }";
        assert_eq!(found("crates/a/src/b.rs", mixed), [(3, "no test sleeps")]);
    }

    #[test]
    fn attributes_end_at_their_own_bracket() {
        let code = "#[a(b[0])] #![c] # [d] x[1]";
        assert_eq!(attributes(code).collect::<Vec<_>>(), [(0, "a(b[0])"), (11, "c")]);
    }
}
