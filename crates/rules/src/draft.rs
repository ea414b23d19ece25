//! Texts on their way to become a set of rules.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use sluicegate_core::{Policy, closest};

use crate::{
    attribute::Attribute,
    card::Cards,
    condition::Condition,
    config_map,
    envoy::{self, Domain},
    error::{Fault, RulesError, quoted},
    example::{self, Example},
    index::Index,
    native,
    rule::Rule,
    set::{Format, RuleSet, Source},
    toml_text,
    tree::{Entry, Fields, Kind, MAX_BYTES, Node, one_of},
    yaml,
};

/// The most rules of a set.
const MAX_RULES: usize = 200_000;
/// The most attributes that rules are told apart by: each costs every request something.
const MAX_ATTRIBUTES: usize = 256;
/// The longest name.
const MAX_NAME: usize = 64;

/// The most errors that are reported of one set.
const MAX_ERRORS: usize = 100;

/// What was read so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    policies: Vec<Policy>,
    by_text: AHashMap<String, usize>,
    names: AHashMap<Box<str>, usize>,
    /// Names of policies, valid or not, with the source and the line of each.
    defined: AHashMap<Box<str>, (usize, usize)>,
    pub(crate) rules: Vec<Rule>,
    native: Vec<usize>,
    /// Names of rules, with the source and the line of each.
    taken: AHashMap<Arc<str>, (usize, usize)>,
    pub(crate) domains: AHashMap<Box<str>, Domain>,
    examples: Vec<Example>,
    attributes: AHashSet<Attribute>,
    trusted_headers: AHashSet<Box<str>>,
    conditions: AHashMap<String, Arc<Condition>>,
    /// The index of the source that is being read, and the names of all.
    source: usize,
    sources: Vec<String>,
    faults: Vec<(usize, Fault)>,
}

impl Draft {
    /// The set that `sources` make, or all errors in them, each with the index of its source.
    pub(crate) fn read(sources: &[Source<'_>]) -> Result<RuleSet, Vec<(usize, RulesError)>> {
        let names = sources.iter().map(|source| source.name.to_owned());
        let mut draft = Self { sources: names.collect(), ..Self::default() };
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
            draft.source = *index;
            let result = draft.policies(tree);
            draft.note(result);
        }
        for (index, tree) in &trees {
            draft.source = *index;
            let result = draft.rules(tree);
            draft.note(result);
        }
        let faults = std::mem::take(&mut draft.faults).into_iter();
        broken.extend(faults.map(|(index, fault)| (index, fault.in_text(sources[index].text))));
        if broken.is_empty() {
            return Ok(draft.done());
        }
        broken.sort_by_key(|(index, error)| (*index, error.at()));
        broken.dedup();
        Err(broken)
    }

    /// Keeps the error, if it is one, so that what follows is checked as well.
    pub(crate) fn note<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(fault) => {
                if self.faults.len() < MAX_ERRORS {
                    self.faults.push((self.source, fault));
                }
                None
            }
        }
    }

    fn policies(&mut self, tree: &Node) -> Result<(), Fault> {
        manifest(tree)?;
        let mut fields = Fields::of(tree, "a rules file")?;
        let Some(policies) = fields.take("policies") else { return Ok(()) };
        for entry in policies.map("policies")? {
            let result = self.named_policy(entry);
            self.note(result);
        }
        Ok(())
    }

    fn named_policy(&mut self, entry: &Entry) -> Result<(), Fault> {
        let fault = |message: String| Fault::new(entry.at, message);
        name(&entry.key, "policy").map_err(fault)?;
        let here = (self.source, entry.at.line);
        if let Some(first) = self.defined.get(&*entry.key) {
            let (shown, first) = (quoted(&entry.key), self.place(*first));
            return Err(fault(format!("duplicate policy {shown}: first defined in {first}")));
        }
        self.defined.insert((*entry.key).into(), here);
        let text = entry.value.text("policy")?;
        let index = self.parse_policy(&entry.value, text)?;
        self.names.insert((*entry.key).into(), index);
        Ok(())
    }

    /// A line of a source, as seen from the one that is being read.
    fn place(&self, (source, line): (usize, usize)) -> String {
        match self.sources.get(source).filter(|_| source != self.source) {
            Some(name) if name.is_empty() => format!("line {line} of another file"),
            Some(name) => format!("line {line} of {name}"),
            None => format!("line {line}"),
        }
    }

    fn rules(&mut self, tree: &Node) -> Result<(), Fault> {
        if manifest(tree).is_err() {
            return Ok(()); // It was noted before.
        }
        let mut fields = Fields::of(tree, "a rules file")?;
        fields.take("policies");
        let rules = fields.take("rules").map(|rules| rules.list("rules"));
        for node in rules.and_then(|rules| self.note(rules)).unwrap_or_default() {
            let rule = native::read(node, self);
            if let Some(rule) = self.note(rule) {
                self.native.push(self.rules.len());
                let added = self.add(rule, node);
                if self.note(added).is_none() {
                    self.native.pop();
                }
            }
        }
        let (domain, descriptors) = (fields.take("domain"), fields.take("descriptors"));
        let read = match (domain, descriptors) {
            (Some(domain), descriptors) => envoy::read(domain, descriptors, self),
            (None, Some(descriptors)) => Err(descriptors.fault(
                "missing field `domain` beside `descriptors`: expected the domain of Envoy's rate \
                 limit filter",
            )),
            (None, None) => Ok(()),
        };
        self.note(read);
        let tests = fields.take("tests").map(|tests| tests.list("tests"));
        for node in tests.and_then(|tests| self.note(tests)).unwrap_or_default() {
            let example = example::read(node, self.source);
            if let Some(example) = self.note(example) {
                self.examples.push(example);
            }
        }
        if let Some(headers) = fields.take("trusted_headers") {
            for node in headers.list("trusted_headers")? {
                let header = node.text("header")?.to_ascii_lowercase();
                self.trusted_headers.insert(header.into());
            }
        }
        fields.done()
    }

    /// Takes a rule in.
    pub(crate) fn add(&mut self, mut rule: Rule, node: &Node) -> Result<usize, Fault> {
        if self.rules.len() >= MAX_RULES {
            return Err(node.fault(format!("too many rules: expected at most {MAX_RULES}")));
        }
        if rule.envoy.is_none() {
            if let Some(first) = self.taken.get(&rule.name) {
                let (shown, first) = (quoted(&rule.name), self.place(*first));
                let message = format!("duplicate rule {shown}: first defined in {first}");
                return Err(node.fault(message));
            }
            self.taken.insert(rule.name.clone(), (self.source, rule.line));
        }
        rule.source = self.source;
        self.rules.push(rule);
        Ok(self.rules.len() - 1)
    }

    /// The same condition as one that another rule has, if it does.
    pub(crate) fn share(&mut self, condition: Condition) -> Arc<Condition> {
        let all = format!("{condition:?}");
        Arc::clone(self.conditions.entry(all).or_insert_with(|| Arc::new(condition)))
    }

    /// Notes that rules ask for an attribute.
    pub(crate) fn uses(&mut self, attribute: &Attribute, node: &Node) -> Result<(), Fault> {
        if self.attributes.contains(attribute) {
            return Ok(());
        }
        if self.attributes.len() >= MAX_ATTRIBUTES {
            let message =
                format!("too many different attributes: expected at most {MAX_ATTRIBUTES}");
            return Err(node.fault(message));
        }
        self.attributes.insert(attribute.clone());
        Ok(())
    }

    /// The policy that a rule says, by its name or its text.
    pub(crate) fn policy(&mut self, node: &Node) -> Result<usize, Fault> {
        let text = node.text("policy")?;
        if let Some(index) = self.names.get(text.strip_prefix('@').unwrap_or(text)) {
            return Ok(*index);
        }
        if self.defined.contains_key(text.strip_prefix('@').unwrap_or(text)) {
            return Ok(0); // It is invalid, which was noted.
        }
        if text.contains([':', '/', ',']) || text.contains(" per ") {
            return self.parse_policy(node, text);
        }
        let mut known: Vec<&str> = self.names.keys().map(|name| &**name).collect();
        known.sort_unstable();
        let expected = match closest(text, &known) {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => {
                known.truncate(8);
                let names = if known.is_empty() { String::new() } else { one_of(&known) + ", or " };
                format!("expected {names}a policy such as `gcra:30/1m`")
            }
        };
        Err(node.fault(format!("unknown policy {}: {expected}", quoted(text))))
    }

    fn parse_policy(&mut self, node: &Node, text: &str) -> Result<usize, Fault> {
        if let Some(index) = self.by_text.get(text) {
            return Ok(*index);
        }
        let policy = text.parse::<Policy>().map_err(|error| {
            let plain = matches!(node.kind, Kind::Scalar { plain: true, .. });
            let before = text.get(..error.offset()).map_or(0, |before| before.chars().count());
            Fault::new(node.at.skip(before + usize::from(!plain)), error.message())
        })?;
        let index = self.keep(policy);
        self.by_text.insert(text.to_owned(), index);
        Ok(index)
    }

    /// The index of a policy among all.
    pub(crate) fn keep(&mut self, policy: Policy) -> usize {
        let text = policy.to_string();
        *self.by_text.entry(text).or_insert_with(|| {
            self.policies.push(policy);
            self.policies.len() - 1
        })
    }

    fn done(self) -> RuleSet {
        let native = || self.native.iter().map(|at| (*at, &self.rules[*at]));
        let index = Index::of(native().map(|(_, rule)| &rule.conditions));
        let is_from_client =
            |it: &&Attribute| matches!(it, Attribute::Header(_) | Attribute::Query(_));
        let mut from_clients: Vec<_> =
            self.attributes.iter().filter(is_from_client).cloned().collect();
        from_clients.sort_by_key(ToString::to_string);
        RuleSet {
            cards: Cards::of(native(), |filed| index.known(filed)),
            index,
            policies: self.policies,
            names: self.names,
            rules: self.rules,
            domains: self.domains,
            examples: self.examples,
            from_clients,
            trusted_headers: self.trusted_headers,
        }
    }
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

/// The error for a file that is often taken for a rules file.
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

/// A file that is being written is empty for a moment: that is not to say that nothing is limited.
fn nothing(tree: &Node) -> Fault {
    tree.fault("empty rules file: expected rules; use `rules: []` for none")
}

/// Checks a name: it goes into keys, metrics and headers as it is.
pub(crate) fn name(text: &str, what: &str) -> Result<(), String> {
    let fits = text.bytes().all(|it| it.is_ascii_alphanumeric() || b"_-".contains(&it));
    if fits && (1..=MAX_NAME).contains(&text.len()) {
        return Ok(());
    }
    let shown = quoted(text);
    let expected = format!("expected 1 to {MAX_NAME} letters, digits, `-` and `_`");
    Err(format!("invalid {what} name {shown}: {expected}"))
}
