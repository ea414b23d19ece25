//! Reads rules files: `policies`, `rules`, `domain`, `descriptors`, `tests` and `trusted_headers`.

use std::convert::identity;

use crate::{
    attribute::{self, HEADER_NAME},
    builder::RuleSetBuilder,
    envoy,
    error::{Fault, Position, RulesError, quoted},
    example, native,
    set::RuleSet,
    source::{Format, RulesSource},
    toml_text,
    tree::{Entry, Fields, Kind, MAX_BYTES, Node, NodeCount},
    yaml,
};

impl RuleSet {
    /// Parses the rules in `text`: in the form of Sluicegate, that of envoyproxy/ratelimit, or both.
    ///
    /// # Errors
    /// [`RulesError`], with the position and what is expected there.
    pub fn parse(text: &str, format: Format) -> Result<Self, RulesError> {
        Self::check(&[RulesSource { name: "", text, format }])
            .map_err(|mut errors| errors.swap_remove(0).1)
    }

    /// Parses the rules in all `sources` as one set. Each may have a `domain`. A policy may be named in one and used in
    /// another.
    ///
    /// # Errors
    /// At least one [`RulesError`], each with the index of its source, in the order of their
    /// positions. At most 100 are collected.
    pub fn check(sources: &[RulesSource<'_>]) -> Result<Self, Vec<(usize, RulesError)>> {
        let names = sources.iter().map(|source| source.name.to_owned());
        let mut builder = RuleSetBuilder::new(names.collect());
        let mut count = NodeCount::default();
        let mut trees = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            builder.source = index;
            let tree = tree(source.text, source.format, &mut count);
            let Some(tree) = builder.note(tree) else { continue };
            match files(&tree, source.text, &mut count) {
                None => trees.push((index, tree)),
                Some(files) => {
                    let files = files.into_iter().map(|file| file.and_then(not_empty));
                    let files = files.filter_map(|file| builder.note(file));
                    trees.extend(files.map(|tree| (index, tree)));
                }
            }
        }
        // A rule may use a policy that is defined in another source.
        for read in [policies, rules] {
            for (index, tree) in &trees {
                builder.source = *index;
                let result = read(tree, &mut builder);
                builder.note(result);
            }
        }
        if builder.faults.is_empty() {
            return Ok(builder.build());
        }
        let in_text = |(index, fault): (usize, Fault)| (index, fault.in_text(sources[index].text));
        let mut errors: Vec<_> = builder.faults.into_iter().map(in_text).collect();
        errors.sort_by_key(|(index, error)| (*index, error.at));
        errors.dedup();
        Err(errors)
    }
}

fn policies(tree: &Node, builder: &mut RuleSetBuilder) -> Result<(), Fault> {
    manifest(tree)?;
    let mut fields = Fields::of(tree, "a rules file")?;
    let Some(policies) = fields.take("policies") else { return Ok(()) };
    for entry in policies.map("policies")? {
        let result = builder.named_policy(entry);
        builder.note(result);
    }
    Ok(())
}

fn rules(tree: &Node, builder: &mut RuleSetBuilder) -> Result<(), Fault> {
    if manifest(tree).is_err() {
        return Ok(()); // `policies` has recorded the error.
    }
    let mut fields = Fields::of(tree, "a rules file")?;
    fields.take("policies");
    let rules = fields.take("rules").map(|rules| rules.list("rules"));
    for node in rules.and_then(|rules| builder.note(rules)).unwrap_or_default() {
        let rule = native::read(node, builder);
        if let Some(rule) = builder.note(rule) {
            let added = builder.add(rule, node);
            builder.note(added);
        }
    }
    let (domain, descriptors) = (fields.take("domain"), fields.take("descriptors"));
    let read = match (domain, descriptors) {
        (Some(domain), descriptors) => envoy::read(domain, descriptors, builder),
        (None, Some(descriptors)) => Err(descriptors.fault(
            "missing field `domain` beside `descriptors`: expected the domain of Envoy's rate \
             limit filter",
        )),
        (None, None) => Ok(()),
    };
    builder.note(read);
    let tests = fields.take("tests").map(|tests| tests.list("tests"));
    for node in tests.and_then(|tests| builder.note(tests)).unwrap_or_default() {
        let example = example::read(node, builder.source);
        if let Some(example) = builder.note(example) {
            builder.examples.push(example);
        }
    }
    if let Some(headers) = fields.take("trusted_headers") {
        for node in headers.list("trusted_headers")? {
            let text = node.text("header")?;
            let header = attribute::header_name(text).ok_or_else(|| {
                node.fault(format!("invalid header {}: {HEADER_NAME}", quoted(text)))
            })?;
            builder.trusted_headers.insert(header.into());
        }
    }
    fields.finish()
}

fn tree(text: &str, format: Format, count: &mut NodeCount) -> Result<Node, Fault> {
    if text.len() > MAX_BYTES {
        let length = text.len();
        let message = format!("invalid rules file of {length} bytes: expected at most {MAX_BYTES}");
        return Err(Fault::new(Position::default(), message));
    }
    let tree = match format {
        Format::Yaml => yaml::parse(text, count, identity)?,
        Format::Toml => toml_text::parse(text, count, identity)?,
    };
    not_empty(tree)
}

/// The rules file `tree`, or an error if nothing is in it: it may be half-written.
fn not_empty(tree: Node) -> Result<Node, Fault> {
    match &tree.kind {
        Kind::Null => Err(tree.fault(NOTHING)),
        Kind::Map(entries) if entries.is_empty() => Err(tree.fault(NOTHING)),
        Kind::Map(_) | Kind::Scalar { .. } | Kind::List(_) => Ok(tree),
    }
}

const NOTHING: &str = "empty rules file: expected rules; use `rules: []` for none";

/// The error for other files that users mistake for rules files.
fn manifest(tree: &Node) -> Result<(), Fault> {
    match &tree.kind {
        Kind::Map(entries) => {
            let field = |name: &str| entries.iter().find(|entry| *entry.key == *name);
            let Some((_, kind)) = field("apiVersion").zip(field("kind")) else { return Ok(()) };
            Err(kind.value.fault(format!(
                "invalid rules file: {} is a Kubernetes manifest; expected a rules file or a \
                 `ConfigMap` of them",
                kind.value.described()
            )))
        }
        Kind::List(items) => {
            let Some(Node { kind: Kind::Map(entries), .. }) = items.first() else { return Ok(()) };
            if !entries.iter().any(|entry| *entry.key == *"max_value") {
                return Ok(());
            }
            Err(tree.fault(
                "invalid rules file: expected a map, found a list of limits in the format of \
                 limitador; write them as `rules`, as docs/coming-from.md shows",
            ))
        }
        Kind::Null | Kind::Scalar { .. } => Ok(()),
    }
}

// ConfigMap manifests of Kubernetes, whose `data` contains rules files.

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
