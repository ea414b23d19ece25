//! `cargo xtask docs`: checks of texts for users. Links have a target, and no text has a banned word.
//!
//! Tests of the crates `cli` and `server` check that console blocks equal the output of the commands, that the
//! client examples run, and that the walkthroughs work; `cargo xtask docs` runs those tests too.

mod scan;
mod words;

use anyhow::Result;

use self::{
    scan::Words,
    words::{ALLOWED, BANNED, SYMBOLS},
};
use crate::{
    install, shell,
    tidy::{
        code::{self, PartKind},
        files::{self, RepoFile},
        findings::Findings,
        links,
    },
    workspace,
};

/// The tests of documents: a crate, and the part of its tests.
const TESTS: [(&str, &str); 4] = [
    ("sluicegate-cli", "documents::"),
    ("sluicegate-cli", "platform::"),
    ("sluicegate-cli", "walkthroughs::"),
    ("sluicegate-server", "snippets::"),
];

/// Crates whose texts are for developers.
const INTERNAL: [&str; 4] = ["bench", "conformance", "testing", "proto"];

/// Everything about documents.
pub(crate) fn run() -> Result<()> {
    let path = install::ensure()?;
    let mut failed = check();
    for (package, part) in TESTS {
        let mut test = shell::cargo();
        test.current_dir(workspace::root()).env("PATH", &path);
        test.args(["test", "--locked", "-p", package, "--test", "it", part]);
        failed = failed.and(shell::run(&mut test));
    }
    failed
}

/// Checks that need no program: links and words.
pub(crate) fn check() -> Result<()> {
    let root = workspace::root();
    let files = files::list(&root)?;
    let mut findings = Findings::default();
    links::check(&files, &root, &mut findings);
    for RepoFile { path, text, .. } in &files {
        let Some(text) = text.as_deref().and_then(|text| visible(path, text)) else { continue };
        for (line, found, instead) in banned(path, &text) {
            findings.error(format!("{path}:{line}: `{found}`: write {instead}"));
        }
    }
    findings.report("docs")
}

/// Banned words in a file, in the order of lines.
fn banned(path: &str, text: &str) -> Vec<(usize, String, &'static str)> {
    let allowed = |pattern: &str| {
        ALLOWED.iter().any(|(file, word, _)| path.starts_with(file) && *word == pattern)
    };
    let words = Words::new(text);
    let mut found = Vec::new();
    for (pattern, instead) in BANNED.iter().filter(|(pattern, _)| !allowed(pattern)) {
        found.extend(words.find(pattern).into_iter().map(|(line, word)| (line, word, *instead)));
    }
    for (symbol, instead) in SYMBOLS.iter().filter(|(symbol, _)| !allowed(symbol)) {
        let lines = text.lines().enumerate().filter(|(_, line)| line.contains(symbol));
        found.extend(lines.map(|(index, _)| (index + 1, (*symbol).to_owned(), *instead)));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The text of a file that users read, with line numbers unchanged; `None` if they read none of it.
fn visible(path: &str, text: &str) -> Option<String> {
    let (name, folder) = path.rsplit_once('/').map_or((path, ""), |(folder, name)| (name, folder));
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    if path == "README.md" || (path.starts_with("docs/") && !path.starts_with("docs/adr/")) {
        return (ending == "md").then(|| without_rust(text));
    }
    if path.starts_with("examples/") || path.starts_with("dist/") {
        return Some(text.to_owned());
    }
    if path.starts_with("crates/server/assets/") && !folder.ends_with("uplot") {
        return match ending {
            "html" => Some(text.to_owned()),
            "js" => Some(script_strings(text)),
            _ => None,
        };
    }
    let (krate, inner) = path.strip_prefix("crates/")?.split_once('/')?;
    if INTERNAL.contains(&krate) {
        return None;
    }
    if krate == "redis" && inner.starts_with("lua/") {
        return Some(without_comments(text));
    }
    let source = inner.strip_prefix("src/")?;
    match ending {
        "json" => Some(text.to_owned()),
        "rs" if !source.contains("tests/") && !source.ends_with("tests.rs") => {
            // The comments of arguments are the help of the command.
            let help = krate == "cli" && (text.contains("#[arg") || text.contains("#[command"));
            Some(literals(text, help))
        }
        _ => None,
    }
}

/// A page without its blocks of Rust.
fn without_rust(page: &str) -> String {
    let mut rust = false;
    let lines = page.lines().map(|line| {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            rust = !rust && language.starts_with("rust");
        }
        if rust { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A Lua file without its comments.
fn without_comments(lua: &str) -> String {
    let lines = lua.lines().map(|line| line.split("--").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The strings of a JavaScript file; a `;` for each character of everything else.
fn script_strings(script: &str) -> String {
    let mut kept = String::with_capacity(script.len());
    // The quote that ends the string, and how many braces are open in a `${}`.
    let (mut quote, mut depth) = (None, 0_usize);
    let mut characters = script.chars().peekable();
    while let Some(it) = characters.next() {
        let next = characters.peek().copied();
        match (quote, it) {
            (_, '\n') => kept.push(it),
            (None, '/') if next == Some('/') => {
                while characters.next_if(|it| *it != '\n').is_some() {}
            }
            (None, '"' | '\'' | '`') => quote = Some(it),
            (None, _) => kept.push(if it.is_whitespace() { it } else { ';' }),
            (Some(_), '\\') => kept.extend(characters.next().map(|_| '.')),
            (Some('`'), '{') => depth += 1,
            (Some('`'), '}') => depth = depth.saturating_sub(1),
            (Some(open), _) if it == open && depth == 0 => quote = None,
            (Some(_), _) => kept.push(if depth > 0 { ';' } else { it }),
        }
    }
    kept
}

/// The strings of a Rust file outside its tests, and its doc comments if they are the `help`; a `;` for each
/// character of everything else.
fn literals(source: &str, help: bool) -> String {
    let end = source.find("#[cfg(test)]\nmod tests").unwrap_or(source.len());
    let mut kept = String::with_capacity(end);
    let mut code = String::new();
    for (part, text) in code::parts(&source[..end]) {
        if part == PartKind::Code {
            code.push_str(text);
        }
        // These are for developers.
        let internal =
            ["expect(", "reason = "].iter().any(|it| code.trim_end().ends_with(it.trim_end()));
        match part {
            PartKind::Literal if !internal => kept += &readable(text),
            PartKind::Comment if help && text.starts_with("///") => kept += text,
            PartKind::Literal | PartKind::Comment | PartKind::Code => kept.extend(
                text.chars().map(|it| if it.is_whitespace() || it == '\n' { it } else { ';' }),
            ),
        }
    }
    kept
}

/// A literal without its escapes and the names of inserted values.
fn readable(literal: &str) -> String {
    let mut text = literal.to_owned();
    for escape in ["\\n", "\\t", "\\r", "\\\"", "\\'"] {
        text = text.replace(escape, ". ");
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(open) = rest.find('{') {
        kept += &rest[..open];
        let name = |it: char| it.is_alphanumeric() || "_:?.#<>^$*".contains(it);
        let inside = rest[open + 1..].find(|it: char| !name(it)).map(|length| open + 1 + length);
        rest = match inside {
            Some(close) if rest[close..].starts_with('}') => {
                kept.push_str("{}");
                &rest[close + 1..]
            }
            _ => {
                kept.push('{');
                &rest[open + 1..]
            }
        };
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let text = visible(path, text).unwrap_or_default();
        banned(path, &text).into_iter().map(|(line, word, _)| (line, word)).collect()
    }

    fn one(line: usize, word: &str) -> Vec<(usize, String)> {
        vec![(line, word.to_owned())]
    }

    #[test]
    fn pages_are_read_but_not_decisions_or_rust() {
        assert_eq!(found("docs/http.md", "a\nwhoever asks"), one(2, "whoever"));
        assert_eq!(found("docs/adr/0001-x.md", "whoever"), []);
        assert_eq!(found("docs/library.md", "```rust\n1..=2\n```\n3 ..= 4"), one(4, "..="));
        assert_eq!(found("CONTRIBUTING.md", "anew"), []);
    }

    #[test]
    fn strings_are_read_but_not_code_comments_or_tests() {
        let source = "// anew\nfn anew(face: u8) {\n    f(\"{face} would do\\nanew\")\n}\n\
                      #[cfg(test)]\nmod tests { \"kin\" }";
        let expected = [one(3, "anew"), one(3, "would do")].concat();
        assert_eq!(found("crates/core/src/a.rs", source), expected);
        assert_eq!(found("crates/core/src/a.rs", "g(\"would\", \"do\")"), []);
        assert_eq!(found("crates/core/src/a.rs", "x.expect(\"anew\")"), []);
        assert_eq!(found("crates/testing/src/a.rs", "\"anew\""), []);
        assert_eq!(found("crates/core/tests/it/a.rs", "\"anew\""), []);
    }

    #[test]
    fn comments_of_arguments_are_help() {
        let source = "/// Reads it\n/// anew.\n#[arg(long)]\nx: u8,\n// anew";
        assert_eq!(found("crates/cli/src/a.rs", source), one(2, "anew"));
        assert_eq!(found("crates/server/src/a.rs", source), []);
    }

    #[test]
    fn scripts_assets_and_examples_are_read() {
        assert_eq!(found("crates/redis/lua/a.lua", "-- anew\nerror('anew')"), one(2, "anew"));
        assert_eq!(found("crates/server/assets/a.js", "text(`99 of 100`)"), one(1, "99 of 100"));
        let script = "face.x('a') // anew\nf(`b ${face.map((it) => { kin })} zeal`, 'it\\'s kin')";
        let expected = [one(2, "kin"), one(2, "zeal")].concat();
        assert_eq!(found("crates/server/assets/a.js", script), expected);
        assert_eq!(found("crates/server/assets/uplot/u.js", "anew"), []);
        assert_eq!(found("examples/rules/a.yaml", "# kin"), one(1, "kin"));
    }
}
