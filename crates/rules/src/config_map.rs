//! ConfigMap manifests of Kubernetes, whose `data` contains rules files.

use crate::{
    error::{Fault, Position},
    source::Format,
    toml_text,
    tree::{Entry, Kind, Node, NodeCount},
    yaml,
};

/// Extensions of rules files in a folder.
const ENDINGS: [&str; 3] = [".yaml", ".yml", ".toml"];

/// The rules files in a manifest, with their positions in `text`, and the errors of others.
/// `None` for a tree that is not a `ConfigMap`.
pub(crate) fn files(
    tree: &Node,
    text: &str,
    count: &mut NodeCount,
) -> Option<Vec<Result<Node, Fault>>> {
    let Kind::Map(fields) = &tree.kind else { return None };
    if !tree.is_config_map() {
        return None;
    }
    let data = fields.iter().find(|entry| *entry.key == *"data");
    let data = data.map(|data| &data.value).filter(|data| !data.is_null());
    let entries = match data.map(|data| data.map("data")) {
        Some(Ok(entries)) => entries,
        Some(Err(fault)) => return Some(vec![Err(fault)]),
        None => &[],
    };
    let lines: Vec<&str> = text.lines().collect();
    let is_file = |entry: &&Entry| ENDINGS.iter().any(|ending| entry.key.ends_with(ending));
    let mut files: Vec<_> =
        entries.iter().filter(is_file).map(|entry| file(entry, &lines, count)).collect();
    if files.is_empty() {
        let message =
            "invalid ConfigMap: expected a file under `data` that ends in .yaml, .yml or .toml";
        files.push(Err(tree.fault(message)));
    }
    Some(files)
}

fn file(entry: &Entry, lines: &[&str], count: &mut NodeCount) -> Result<Node, Fault> {
    let inner = entry.value.text(&entry.key)?;
    let position = positions(entry, inner, lines);
    match Format::of_file(&entry.key) {
        Format::Yaml => yaml::parse(inner, count, position),
        Format::Toml => toml_text::parse(inner, count, position),
    }
}

/// Converts positions in a file to positions in the manifest: a block scalar has its lines, indented. For other
/// scalars, the position is that of the name.
fn positions(entry: &Entry, inner: &str, lines: &[&str]) -> impl Fn(Position) -> Position {
    let first = inner.lines().next().unwrap_or_default();
    let line = lines.get(entry.at.line).copied().unwrap_or_default();
    let indent = line.chars().take_while(|it| *it == ' ').count();
    let inner_indent = first.chars().take_while(|it| *it == ' ').count();
    let is_block = !first.trim().is_empty() && line.trim() == first.trim();
    let (base, indent, at) = (entry.at.line, indent.saturating_sub(inner_indent), entry.at);
    move |inside| match is_block {
        true => Position { line: base + inside.line, column: indent + inside.column },
        false => at,
    }
}
