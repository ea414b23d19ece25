//! Builds a set of rules from rules, policies and examples, and collects the errors in them.

use std::{rc::Rc, sync::Arc};

use ahash::{AHashMap, AHashSet};
use sluicegate_core::{Operation, Policy, PreparedPolicy, closest, one_of};

use crate::{
    attribute::Attribute,
    compiled_rule::CompiledRules,
    condition::Condition,
    envoy::DomainTree,
    error::{Definition, Fault, quoted},
    example::Example,
    index::Index,
    rule::Rule,
    set::{RuleSet, sorted},
    tree::{Entry, Fields, Kind, Node},
};

/// Maximum number of rules.
const MAX_RULES: usize = 200_000;
/// Maximum number of attributes in rules, because each one costs time in every request.
const MAX_ATTRIBUTES: usize = 256;
/// Maximum total length of the paths to descriptors.
const MAX_PATH_BYTES: usize = 64 << 20;
/// Maximum length of a name.
const MAX_NAME: usize = 64;

/// Why a rule cannot limit requests in flight.
const NO_CONCURRENCY: &str = "expected one without `concurrency`, because proxies report only the start of \
                              a request to the rules; hold and settle in the application (SG.HOLD, \
                              POST /v1/hold), use the Tower layer, or report the end from Envoy \
                              (`hold_id` in the rule, `apply_on_stream_done` in Envoy)";

/// Maximum number of errors that are reported.
const MAX_ERRORS: usize = 100;
/// Number of errors after which no similar name is searched for, because each search compares all names.
const MAX_SEARCHED: usize = 10;

/// A descriptor with a `*`: the rule of its domain, the index of the descriptor above, its key and value.
type WildcardId = (usize, usize, Rc<str>, Option<Rc<str>>);

/// Everything that was read so far.
#[derive(Debug, Default)]
pub(crate) struct RuleSetBuilder {
    policies: Vec<Policy>,
    /// The units of a lease under each policy; 0: none is set, 1: a lease is ruled out.
    leases: Vec<u32>,
    by_text: AHashMap<String, usize>,
    /// Policies with leases, by those without and the units.
    leased: AHashMap<(usize, u32), usize>,
    names: AHashMap<Box<str>, usize>,
    /// Names of policies, valid or not.
    defined: AHashMap<Box<str>, Definition>,
    pub(crate) rules: Vec<Rule>,
    /// Names of rules.
    taken: AHashMap<Arc<str>, Definition>,
    pub(crate) domains: AHashMap<Box<str>, DomainTree>,
    /// Descriptors with a `*`, with their indices in the tree.
    pub(crate) wildcards: AHashMap<WildcardId, usize>,
    /// Total length of the keys and values along the paths to all descriptors.
    path_bytes: usize,
    pub(crate) examples: Vec<Example>,
    attributes: AHashSet<Attribute>,
    pub(crate) trusted_headers: AHashSet<Box<str>>,
    conditions: AHashMap<String, Arc<Condition>>,
    /// Whether the rule that is read has a `hold_id`.
    pub(crate) holds: bool,
    /// The index of the current source, and the names of all.
    pub(crate) source: usize,
    sources: Vec<String>,
    /// Errors so far, each with the index of its source.
    pub(crate) faults: Vec<(usize, Fault)>,
}

impl RuleSetBuilder {
    /// A builder for sources of these names.
    pub(crate) fn new(sources: Vec<String>) -> Self {
        Self { sources, ..Self::default() }
    }

    /// Records the error, if any, so that the rest is checked as well.
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

    /// Adds a policy of the map `policies`.
    pub(crate) fn named_policy(&mut self, entry: &Entry) -> Result<(), Fault> {
        let fault = |message: String| Fault::new(entry.at, message);
        check_name(&entry.key, "policy").map_err(fault)?;
        let here = Definition { source: self.source, line: entry.at.line };
        if let Some(first) = self.defined.get(&*entry.key) {
            return Err(fault(self.duplicate("policy", &entry.key, *first)));
        }
        self.defined.insert((*entry.key).into(), here);
        let index = if let Kind::Map(_) = &entry.value.kind {
            let mut fields = Fields::of(&entry.value, "a policy")?;
            let policy = fields.require("policy", "a policy such as `gcra:30/1m`")?;
            let index = self.parse_policy(policy, policy.text("policy")?)?;
            let index = self.lease(&mut fields, Some(index))?.unwrap_or(index);
            fields.finish()?;
            index
        } else {
            self.parse_policy(&entry.value, entry.value.text("policy")?)?
        };
        self.names.insert((*entry.key).into(), index);
        Ok(())
    }

    /// The error for a name that was defined before.
    pub(crate) fn duplicate(&self, what: &str, name: &str, first: Definition) -> String {
        let Definition { source, line } = first;
        let file = match self.sources.get(source).filter(|_| source != self.source) {
            Some(name) if name.is_empty() => " of another file".to_owned(),
            Some(name) => format!(" of {name}"),
            None => String::new(),
        };
        format!("duplicate {what} {}: first defined in line {line}{file}", quoted(name))
    }

    /// Adds a rule, and returns its index.
    pub(crate) fn add(&mut self, mut rule: Rule, node: &Node) -> Result<usize, Fault> {
        if self.rules.len() >= MAX_RULES {
            return Err(node.fault(format!("too many rules: expected at most {MAX_RULES}")));
        }
        if rule.envoy.is_none() {
            if let Some(first) = self.taken.get(&rule.name) {
                return Err(node.fault(self.duplicate("rule", &rule.name, *first)));
            }
            let first = Definition { source: self.source, line: rule.line };
            self.taken.insert(rule.name.clone(), first);
        }
        rule.source = self.source;
        self.rules.push(rule);
        Ok(self.rules.len() - 1)
    }

    /// Shares equal conditions between rules.
    pub(crate) fn share(&mut self, condition: Condition) -> Arc<Condition> {
        let all = format!("{condition:?}");
        Arc::clone(self.conditions.entry(all).or_insert_with(|| Arc::new(condition)))
    }

    /// Records a descriptor with `length` bytes of keys and values along its path, which is the name of its rule.
    pub(crate) fn uses_path(&mut self, length: usize, node: &Node) -> Result<(), Fault> {
        self.path_bytes = self.path_bytes.saturating_add(length);
        if self.path_bytes <= MAX_PATH_BYTES {
            return Ok(());
        }
        Err(node.fault(format!(
            "invalid descriptors: expected at most {MAX_PATH_BYTES} bytes in the paths of all, found {}",
            self.path_bytes
        )))
    }

    /// Records that rules use an attribute.
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

    /// The index of the policy of a rule, which gives its name or its text.
    ///
    /// It has `concurrency` if the rule has a `hold_id`, and only then, because nothing else reports the end of a
    /// request. Named policies can always have it, for clients that hold and settle.
    pub(crate) fn policy(&mut self, node: &Node) -> Result<usize, Fault> {
        let text = node.text("policy")?;
        let name = text.strip_prefix('@').unwrap_or(text);
        let named = self.names.get(name).copied();
        if named.is_none() && self.defined.contains_key(name) {
            return Ok(0); // It is invalid, and its error is recorded.
        }
        let index = named.map_or_else(|| self.policy_of_text(node, text), Ok)?;
        let Some(policy) = self.policies.get(index) else { return Ok(index) };
        let hold = Operation::Hold { id: b"-", cost: 0, ttl: None };
        let problem = match (policy.counts_holds(), self.holds) {
            (true, false) => format!("of a rule: {NO_CONCURRENCY}"),
            (false, true) => {
                "of a rule with `hold_id`: expected one with `concurrency`, such as `concurrency:20/30s`".to_owned()
            }
            (true, true) if policy.check_operation(hold).is_err() => {
                "of a rule with `hold_id`: expected one without `leaky-queue`".to_owned()
            }
            _ => return Ok(index),
        };
        Err(node.fault(format!("invalid policy {} {problem}", quoted(text))))
    }

    /// The policy with this index.
    pub(crate) fn policy_at(&self, index: usize) -> Option<&Policy> {
        self.policies.get(index)
    }

    fn policy_of_text(&mut self, node: &Node, text: &str) -> Result<usize, Fault> {
        if text.contains([':', '/', ',']) || text.contains(" per ") {
            return self.parse_policy(node, text);
        }
        let expected = self.expected_policy(text);
        Err(node.fault(format!("unknown policy {}: {expected}", quoted(text))))
    }

    /// What is expected instead of `name`, which no policy has.
    fn expected_policy(&self, name: &str) -> String {
        if self.faults.len() >= MAX_SEARCHED {
            return "expected the name of a policy, or one such as `gcra:30/1m`".to_owned();
        }
        let mut known = sorted(&self.names);
        match closest(name, &known) {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => {
                known.truncate(8);
                let names = if known.is_empty() { String::new() } else { one_of(&known) + ", or " };
                format!("expected {names}a policy such as `gcra:30/1m`")
            }
        }
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
        let index = self.intern_policy(policy);
        self.by_text.insert(text.to_owned(), index);
        Ok(index)
    }

    /// The index of the policy beside the field `lease`, with that lease.
    pub(crate) fn lease(
        &mut self,
        fields: &mut Fields<'_>,
        policy: Option<usize>,
    ) -> Result<Option<usize>, Fault> {
        let at = fields.position_of("lease");
        let Some(units) = fields.number("lease", 0)? else { return Ok(policy) };
        let fault = |message: String| Err(Fault::new(at, message));
        let Some(index) = policy else {
            return fault("invalid `lease` without `policy`: expected both".to_owned());
        };
        // It is invalid, and its error is recorded.
        let Some(policy) = self.policies.get(index).cloned() else { return Ok(Some(index)) };
        if let Err(error) = PreparedPolicy::new(&policy).lease(units) {
            return fault(error.to_string());
        }
        // A lease of one unit asks each time, and differs from none, for which the server's lease applies.
        let units = units.max(1);
        let next = self.policies.len();
        let index = *self.leased.entry((index, units)).or_insert(next);
        if index == next {
            self.policies.push(policy);
            self.leases.push(units);
        }
        Ok(Some(index))
    }

    /// The index of `policy`, which is added if it is new.
    pub(crate) fn intern_policy(&mut self, policy: Policy) -> usize {
        let text = policy.to_string();
        *self.by_text.entry(text).or_insert_with(|| {
            self.policies.push(policy);
            self.leases.push(0);
            self.policies.len() - 1
        })
    }

    /// The rules that were added, compiled.
    pub(crate) fn build(self) -> RuleSet {
        // Those in the format of envoyproxy/ratelimit are found in their trees.
        let native = || self.rules.iter().enumerate().filter(|(_, rule)| rule.envoy.is_none());
        let index = Index::of(native().map(|(_, rule)| &rule.conditions));
        let is_from_client =
            |it: &&Attribute| matches!(it, Attribute::Header(_) | Attribute::Query(_));
        let mut from_clients: Vec<_> =
            self.attributes.iter().filter(is_from_client).cloned().collect();
        from_clients.sort_by_key(ToString::to_string);
        RuleSet {
            compiled: CompiledRules::of(native(), |position| index.known(position)),
            index,
            policies: self.policies,
            leases: self.leases,
            names: self.names,
            rules: self.rules,
            domains: self.domains,
            examples: self.examples,
            from_clients,
            trusted_headers: self.trusted_headers,
        }
    }
}

/// Checks a name, which is used in keys, metrics and headers without escapes.
pub(crate) fn check_name(text: &str, what: &str) -> Result<(), String> {
    let fits = text.bytes().all(|it| it.is_ascii_alphanumeric() || b"_-".contains(&it));
    if fits && (1..=MAX_NAME).contains(&text.len()) {
        return Ok(());
    }
    let shown = quoted(text);
    let expected = format!("expected 1 to {MAX_NAME} letters, digits, `-` and `_`");
    Err(format!("invalid {what} name {shown}: {expected}"))
}
