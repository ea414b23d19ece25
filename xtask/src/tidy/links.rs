//! Links between Markdown files have a target.

use std::{fs, path::Path};

use super::{files::RepoFile, findings::Findings};

pub(crate) fn check(files: &[RepoFile], root: &Path, findings: &mut Findings) {
    for RepoFile { path, text, .. } in files {
        let Some(text) = text.as_deref().filter(|_| path.ends_with(".md")) else { continue };
        for (line, target) in links(text) {
            if let Some(fault) = fault(root, path, target) {
                findings.error(format!("{path}:{line}: the link `{target}` {fault}"));
            }
        }
    }
}

/// The target of every link outside code, with its line.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        // Text between backticks is code.
        for part in line.split('`').step_by(2) {
            let targets = part.split("](").skip(1);
            let targets = targets.filter_map(|it| it.split([')', ' ']).next());
            let targets = targets.filter(|it| !it.contains("://") && !it.starts_with("mailto:"));
            links.extend(targets.map(|target| (number, target)));
        }
    }
    links
}

/// Lines outside of code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            code = !code;
            return None;
        }
        (!code).then_some((index + 1, line))
    })
}

/// The fault of a link to `target` in the file `path`.
fn fault(root: &Path, path: &str, target: &str) -> Option<String> {
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    let page = root.join(path);
    let file = if file.is_empty() { page } else { page.with_file_name(file) };
    if !file.exists() {
        return Some("leads nowhere".to_owned());
    }
    let anchor = anchor?;
    let text = fs::read_to_string(file).unwrap_or_default();
    let known = prose(&text).any(|(_, line)| heading(line).as_deref() == Some(anchor));
    (!known).then(|| format!("leads to no heading `{anchor}`"))
}

/// Anchor of the heading in `line`.
fn heading(line: &str) -> Option<String> {
    let text = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let letters = text.trim().chars().filter_map(|it| match it {
        ' ' => Some('-'),
        '-' | '_' => Some(it),
        _ if it.is_alphanumeric() => Some(it.to_ascii_lowercase()),
        _ => None,
    });
    Some(letters.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_skipped() {
        let text = "[a](b.md) and [c](d.md#e \"title\")\n```\n[no](f.md)\n```\n`[no](g.md)` [h](#i)\n\
                    [far](https://example.org)";
        assert_eq!(links(text), [(1, "b.md"), (1, "d.md#e"), (5, "#i")]);
    }

    #[test]
    fn heading_returns_its_anchor() {
        assert_eq!(heading("## The seven integers"), Some("the-seven-integers".to_owned()));
        assert_eq!(heading("### `SG.TAKE key, policy`"), Some("sgtake-key-policy".to_owned()));
        assert_eq!(heading("#![x]"), None);
    }
}
