//! Reads rules files: `policies`, `rules`, `domain`, `descriptors`, `tests` and `trusted_headers`.

use crate::{
    builder::RuleSetBuilder,
    config_map, envoy,
    error::{Fault, RulesError},
    example, native,
    set::RuleSet,
    source::{Format, Source},
    toml_text,
    tree::{Fields, Kind, MAX_BYTES, Node},
    yaml,
};

impl RuleSet {
    /// Parses the rules in `text`: in the form of Sluicegate, that of envoyproxy/ratelimit, or both.
    ///
    /// # Errors
    /// [`RulesError`], with the position and what is expected there.
    pub fn parse(text: &str, format: Format) -> Result<Self, RulesError> {
        Self::parse_all([(text, format)]).map_err(|(_, error)| error)
    }

    /// Parses the rules of several texts as one set. Each may have a `domain`. A policy may be named in one and
    /// used in another.
    ///
    /// # Errors
    /// [`RulesError`], with the index of the text that contains it.
    pub fn parse_all<'t>(
        texts: impl IntoIterator<Item = (&'t str, Format)>,
    ) -> Result<Self, (usize, RulesError)> {
        let source = |(text, format)| Source { name: "", text, format };
        Self::check(&texts.into_iter().map(source).collect::<Vec<_>>())
            .map_err(|errors| errors.into_iter().next().unwrap_or((0, RulesError::whole(""))))
    }

    /// Like [`parse_all`](Self::parse_all), but returns all errors of all sources.
    ///
    /// # Errors
    /// At least one [`RulesError`], each with the index of its source, in the order of their
    /// positions. At most 100 are collected.
    pub fn check(sources: &[Source<'_>]) -> Result<Self, Vec<(usize, RulesError)>> {
        read(sources)
    }
}

/// The set of all rules in `sources`, or all errors in them, each with the index of its source.
fn read(sources: &[Source<'_>]) -> Result<RuleSet, Vec<(usize, RulesError)>> {
    let mut builder = RuleSetBuilder::new(sources.iter().map(|source| source.name.to_owned()));
    let mut trees = Vec::with_capacity(sources.len());
    let mut broken = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        match tree(source.text, source.format) {
            Ok(tree) => match config_map::files(&tree, source.text) {
                None => trees.push((index, tree)),
                Some((files, faults)) => {
                    trees.extend(files.into_iter().map(|tree| (index, tree)));
                    let faults = faults.into_iter();
                    broken.extend(faults.map(|fault| (index, fault.in_text(source.text))));
                }
            },
            Err(error) => broken.push((index, error)),
        }
    }
    // A rule may use a policy that is defined in another source.
    for (index, tree) in &trees {
        builder.begin_source(*index);
        let result = policies(tree, &mut builder);
        builder.note(result);
    }
    for (index, tree) in &trees {
        builder.begin_source(*index);
        let result = rules(tree, &mut builder);
        builder.note(result);
    }
    let faults = builder.take_faults().into_iter();
    broken.extend(faults.map(|(index, fault)| (index, fault.in_text(sources[index].text))));
    if broken.is_empty() {
        return Ok(builder.build());
    }
    broken.sort_by_key(|(index, error)| (*index, error.at()));
    broken.dedup();
    Err(broken)
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
            let added = builder.add_native(rule, node);
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
        let example = example::read(node, builder.source());
        if let Some(example) = builder.note(example) {
            builder.examples.push(example);
        }
    }
    if let Some(headers) = fields.take("trusted_headers") {
        for node in headers.list("trusted_headers")? {
            let header = node.text("header")?.to_ascii_lowercase();
            builder.trusted_headers.insert(header.into());
        }
    }
    fields.finish()
}

fn tree(text: &str, format: Format) -> Result<Node, RulesError> {
    if text.len() > MAX_BYTES {
        let length = text.len();
        let message = format!("invalid rules file of {length} bytes: expected at most {MAX_BYTES}");
        return Err(RulesError::whole(message));
    }
    let tree = match format {
        Format::Yaml => yaml::parse(text),
        Format::Toml => toml_text::parse(text),
    };
    let checked =
        tree.and_then(|tree| if is_empty(&tree) { Err(nothing(&tree)) } else { Ok(tree) });
    checked.map_err(|fault| fault.in_text(text))
}

/// The error for other files that users mistake for rules files.
fn manifest(tree: &Node) -> Result<(), Fault> {
    match &tree.kind {
        Kind::Map(entries) => {
            let field = |name: &str| entries.iter().find(|entry| *entry.key == *name);
            match (field("apiVersion"), field("kind")) {
                (Some(_), Some(kind)) => Err(kind.value.fault(format!(
                    "invalid rules file: {} is a Kubernetes manifest; expected a rules file or a \
                     `ConfigMap` of them",
                    kind.value.described()
                ))),
                _ => Ok(()),
            }
        }
        Kind::List(items) => {
            let Some(Node { kind: Kind::Map(entries), .. }) = items.first() else { return Ok(()) };
            if entries.iter().any(|entry| *entry.key == *"max_value") {
                return Err(tree.fault(
                    "invalid rules file: expected a map, found a list of limits in the format of \
                     limitador; write them as `rules`, as docs/coming-from.md shows",
                ));
            }
            Ok(())
        }
        Kind::Null | Kind::Scalar { .. } => Ok(()),
    }
}

fn is_empty(tree: &Node) -> bool {
    match &tree.kind {
        Kind::Null => true,
        Kind::Map(entries) => entries.is_empty(),
        Kind::Scalar { .. } | Kind::List(_) => false,
    }
}

/// The error for an empty file, which may be half-written.
fn nothing(tree: &Node) -> Fault {
    tree.fault("empty rules file: expected rules; use `rules: []` for none")
}
