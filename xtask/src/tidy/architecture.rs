//! `ARCHITECTURE.md` says what is true: the files that it names exist, and its arrows are those of the table.

use super::{arrows::ARROWS, files::RepoFile, findings::Findings};

const PAGE: &str = "ARCHITECTURE.md";

pub(super) fn check(files: &[RepoFile], findings: &mut Findings) {
    let page = files.iter().find(|file| file.path == PAGE).and_then(|file| file.text.as_deref());
    let Some(page) = page else { return findings.error(format!("{PAGE} is missing")) };
    let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    for fault in missing_paths(page, &paths).into_iter().chain(wrong_arrows(page, ARROWS)) {
        findings.error(format!("{PAGE}: {fault}"));
    }
}

/// Files and folders in backticks that no path ends with.
fn missing_paths(page: &str, paths: &[&str]) -> Vec<String> {
    let text: String = page.split("```").step_by(2).collect();
    let names = text.split('`').skip(1).step_by(2);
    let mut missing: Vec<_> = names
        .filter(|name| name.ends_with(".rs") || name.ends_with(".md") || name.ends_with('/'))
        .filter(|name| !name.contains([' ', '*']))
        .filter(|name| {
            let folder = name.ends_with('/');
            let inside = format!("/{name}");
            !paths.iter().any(|path| {
                if folder {
                    format!("/{path}").contains(&inside)
                } else {
                    format!("/{path}").ends_with(&inside)
                }
            })
        })
        .map(|name| format!("`{name}` does not exist"))
        .collect();
    missing.dedup();
    missing
}

/// Differences of the block of arrows from the table: a line for each crate, `ROLE: USES`.
fn wrong_arrows(page: &str, arrows: &[(&str, &[&str])]) -> Vec<String> {
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines: Vec<_> = block.unwrap_or_default().lines().map(str::trim).collect();
    let expected = arrows.iter().map(|(role, uses)| {
        let uses = if uses.is_empty() { "none".to_owned() } else { uses.join(", ") };
        format!("{role}: {uses}")
    });
    let expected: Vec<_> = expected.collect();
    let missing = expected.iter().filter(|line| !lines.contains(&line.as_str()));
    let missing = missing.map(|line| format!("the arrows lack the line `{line}`"));
    let extra = lines.iter().filter(|line| !expected.iter().any(|it| it == **line));
    missing.chain(extra.map(|line| format!("the arrow `{line}` is not in the table"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_paths_file_that_is_gone_is_found() {
        let page = "`a/b.rs`, `b.rs`, `lua/`, `c.rs`, `x/`, `apply`\n```rust\n`d.rs`\n```\n";
        let paths = ["crates/y/src/a/b.rs", "crates/y/lua/z.lua"];
        assert_eq!(missing_paths(page, &paths), ["`c.rs` does not exist", "`x/` does not exist"]);
        assert_eq!(missing_paths("`eb.rs`", &["crates/web.rs"]), ["`eb.rs` does not exist"]);
    }

    #[test]
    fn wrong_arrows_difference_is_found() {
        let arrows: &[(&str, &[&str])] = &[("core", &[]), ("redis", &["core", "memory"])];
        let page = |block: &str| format!("# A\n\n```text\n{block}\n```\n");
        assert_eq!(wrong_arrows(&page("core: none\nredis: core, memory"), arrows), [""; 0]);
        assert_eq!(
            wrong_arrows(&page("core: none\nredis: core"), arrows),
            [
                "the arrows lack the line `redis: core, memory`",
                "the arrow `redis: core` is not in the table"
            ]
        );
    }
}
