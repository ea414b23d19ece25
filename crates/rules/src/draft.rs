//! Texts on their way to become a set of rules.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use sluicegate_core::Policy;

use crate::{
    attribute::Attribute,
    card::Cards,
    condition::Condition,
    envoy::{self, Domain},
    error::{Fault, RulesError, quoted},
    example::{self, Example},
    index::Index,
    native,
    rule::Rule,
    set::{Format, RuleSet},
    toml_text,
    tree::{Fields, Kind, MAX_BYTES, Node},
    yaml,
};

/// The most rules of a set.
const MAX_RULES: usize = 200_000;
/// The most attributes that rules are told apart by: each costs every request something.
const MAX_ATTRIBUTES: usize = 256;
/// The longest name.
const MAX_NAME: usize = 64;

/// What was read so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    policies: Vec<Policy>,
    by_text: AHashMap<String, usize>,
    names: AHashMap<Box<str>, usize>,
    pub(crate) rules: Vec<Rule>,
    native: Vec<usize>,
    /// Names of rules, with the line of each.
    taken: AHashMap<Arc<str>, usize>,
    pub(crate) domains: AHashMap<Box<str>, Domain>,
    examples: Vec<Example>,
    attributes: AHashSet<Attribute>,
    conditions: AHashMap<String, Arc<Condition>>,
}

impl Draft {
    pub(crate) fn read<'t>(
        texts: impl IntoIterator<Item = (&'t str, Format)>,
    ) -> Result<RuleSet, (usize, RulesError)> {
        let mut draft = Self::default();
        let texts: Vec<_> = texts.into_iter().collect();
        let mut trees = Vec::with_capacity(texts.len());
        for (index, (text, format)) in texts.iter().enumerate() {
            trees.push(tree(text, *format).map_err(|error| (index, error))?);
        }
        // A rule may use a policy that is named in another text.
        for (index, (tree, (text, _))) in trees.iter().zip(&texts).enumerate() {
            draft.policies(tree).map_err(|fault| (index, fault.in_text(text)))?;
        }
        for (index, (tree, (text, _))) in trees.iter().zip(&texts).enumerate() {
            draft.rules(tree).map_err(|fault| (index, fault.in_text(text)))?;
        }
        Ok(draft.done())
    }

    fn policies(&mut self, tree: &Node) -> Result<(), Fault> {
        let mut fields = Fields::of(tree, "a rules file")?;
        let Some(policies) = fields.take("policies") else { return Ok(()) };
        for entry in policies.map("policies")? {
            let named = Fault::new(entry.at, String::new());
            name(&entry.key, "policy").map_err(|message| named.saying(message))?;
            let text = entry.value.text("policy")?;
            let index = self.parse_policy(&entry.value, text)?;
            if self.names.insert((*entry.key).into(), index).is_some() {
                let shown = quoted(&entry.key);
                return Err(Fault::new(entry.at, format!("policy {shown} is there already")));
            }
        }
        Ok(())
    }

    fn rules(&mut self, tree: &Node) -> Result<(), Fault> {
        let mut fields = Fields::of(tree, "a rules file")?;
        fields.take("policies");
        if let Some(rules) = fields.take("rules") {
            for node in rules.list("rules")? {
                let rule = native::read(node, self)?;
                self.native.push(self.rules.len());
                self.add(rule, node)?;
            }
        }
        let (domain, descriptors) = (fields.take("domain"), fields.take("descriptors"));
        match (domain, descriptors) {
            (Some(domain), descriptors) => envoy::read(domain, descriptors, self)?,
            (None, Some(descriptors)) => {
                return Err(descriptors.fault("descriptors without a `domain`"));
            }
            (None, None) => {}
        }
        if let Some(tests) = fields.take("tests") {
            for node in tests.list("tests")? {
                self.examples.push(example::read(node)?);
            }
        }
        fields.done()
    }

    /// Takes a rule in.
    pub(crate) fn add(&mut self, rule: Rule, node: &Node) -> Result<usize, Fault> {
        if self.rules.len() >= MAX_RULES {
            return Err(node.fault(format!("more than {MAX_RULES} rules")));
        }
        if rule.envoy.is_none()
            && let Some(line) = self.taken.insert(rule.name.clone(), rule.line)
        {
            let shown = quoted(&rule.name);
            return Err(node.fault(format!(
                "a rule {shown} is there already, in line {line}; another name would do"
            )));
        }
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
            let message = format!("more than {MAX_ATTRIBUTES} different attributes");
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
        if text.contains(':') {
            return self.parse_policy(node, text);
        }
        let mut known: Vec<_> = self.names.keys().map(|name| format!("`{name}`")).collect();
        known.sort_unstable();
        known.truncate(8);
        known.push("a text as `gcra:30/1m`".to_owned());
        let shown = quoted(text);
        Err(node.fault(format!("no policy is named {shown}; {} would do", known.join(", "))))
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
        }
    }
}

fn tree(text: &str, format: Format) -> Result<Node, RulesError> {
    if text.len() > MAX_BYTES {
        let message =
            format!("{} bytes are more than a rules file may have: {MAX_BYTES}", text.len());
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

fn is_empty(tree: &Node) -> bool {
    match &tree.kind {
        Kind::Null => true,
        Kind::Map(entries) => entries.is_empty(),
        Kind::Scalar { .. } | Kind::List(_) => false,
    }
}

/// A file that is being written is empty for a moment: that is not to say that nothing is limited.
fn nothing(tree: &Node) -> Fault {
    tree.fault("there is nothing in it; `rules: []` would say that there are no rules")
}

/// Checks a name: it goes into keys, metrics and headers as it is.
pub(crate) fn name(text: &str, what: &str) -> Result<(), String> {
    let fits = text.bytes().all(|it| it.is_ascii_alphanumeric() || b"_-".contains(&it));
    if fits && (1..=MAX_NAME).contains(&text.len()) {
        return Ok(());
    }
    let shown = quoted(text);
    Err(format!("{what} name {shown} is not 1..={MAX_NAME} letters, digits, `-` and `_`"))
}
