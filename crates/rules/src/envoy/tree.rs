//! Finds the limit of a descriptor in the tree of its domain.

use std::borrow::Cow;

use ahash::AHashMap;
use sluicegate_core::Policy;
use smallvec::SmallVec;

use super::{Descriptor, Wire, push_entry};
use crate::{
    error::Definition,
    escape::escape,
    glob::Glob,
    rule::{Charge, Charges, Match, Rule, Treatment},
};

/// The tree of descriptors of one domain.
#[derive(Clone, Debug)]
pub(crate) struct DomainTree {
    pub(crate) nodes: Vec<TreeNode>,
    /// Index of the rule for limits that come with a request.
    pub(crate) request_limits: usize,
}

/// A descriptor in the tree, with those below it and its limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct TreeNode {
    pub(crate) exact: AHashMap<Box<str>, AHashMap<Box<str>, usize>>,
    /// In file order.
    pub(crate) wildcards: Vec<Wildcard>,
    pub(crate) any: AHashMap<Box<str>, usize>,
    /// Index of its rule.
    pub(crate) rule: Option<usize>,
    /// Whether its name in metrics contains the value that matched.
    pub(crate) value_to_metric: bool,
    pub(crate) definition: Definition,
}

/// A descriptor with a `*`.
#[derive(Clone, Debug)]
pub(crate) struct Wildcard {
    pub(crate) key: Box<str>,
    pub(crate) value: Option<Glob>,
    /// Pattern of `KEY_VALUE`, if there is a `*` in a key that is beside a value.
    pub(crate) joined: Option<Glob>,
    /// Whether all matching values share one key.
    pub(crate) share: bool,
    pub(crate) node: usize,
}

impl Wildcard {
    fn pattern(&self) -> Option<&str> {
        self.value.as_ref().map(|glob| &*glob.text)
    }

    fn matches(&self, key: &str, value: &str) -> bool {
        match (&self.joined, &self.value) {
            (Some(joined), _) => joined.matches(format!("{key}_{value}").as_bytes()),
            (None, Some(glob)) => *self.key == *key && glob.matches(value.as_bytes()),
            // A `*` in the key matches the value as well.
            (None, None) => Glob::new(&self.key).matches(format!("{key}_{value}").as_bytes()),
        }
    }

    /// Whether its name in metrics contains the key of the request.
    const fn is_named_by_key(&self) -> bool {
        self.joined.is_some() || self.value.is_none()
    }
}

/// How an entry matched.
#[derive(Clone, Copy)]
enum EntryMatch<'t> {
    Value,
    Wildcard(&'t Wildcard),
    Key,
}

impl DomainTree {
    /// The limit of a descriptor, if the tree has one at exactly its depth.
    pub(crate) fn find<'s>(
        &'s self,
        name: &str,
        descriptor: &Descriptor<'_>,
        rules: &'s [Rule],
        policies: &'s [Policy],
    ) -> Option<Match<'s>> {
        if let Some((requests, unit)) = descriptor.limit {
            let mut key = key(name, descriptor.entries, &[]);
            // Descriptors with the same entries and different limits are counted separately.
            key.extend_from_slice(format!("|{requests}/{}", unit.name()).as_bytes());
            let mut metric = name.to_owned();
            for (key, value) in descriptor.entries {
                push_entry(&mut metric, key, Some(value));
            }
            let policy = unit.policy(requests).map(Cow::Owned);
            let mut found = match_without_charges(&rules[self.request_limits], metric.into());
            found.wire = Some(Wire { rate: Some((requests, unit)), name: None });
            match policy {
                Some(policy) => {
                    found.charges.push(Charge { level: None, key, policy, index: None });
                }
                None => found.treatment = Treatment::Block,
            }
            return Some(found);
        }
        let mut path: SmallVec<[EntryMatch<'_>; 8]> = SmallVec::new();
        let mut at = 0;
        // Whether the name in metrics depends on the request.
        let mut varies = false;
        for (key, value) in descriptor.entries {
            let (by, next) = self.nodes[at].step(key, value)?;
            varies |= self.nodes[next].value_to_metric
                || matches!(by, EntryMatch::Wildcard(it) if it.is_named_by_key());
            path.push(by);
            at = next;
        }
        let rule = &rules[self.nodes[at].rule?];
        let envoy = rule.envoy()?;
        let metric = if varies || envoy.detailed_metric {
            self.metric(name, descriptor, &path, envoy.detailed_metric)
        } else {
            Cow::Borrowed(rule.name())
        };
        let mut found = match_without_charges(rule, metric);
        found.treatment = rule.treatment();
        found.shadow = rule.is_shadow();
        found.on_error = rule.settings.on_error;
        found.wire = Some(Wire { rate: envoy.rate, name: envoy.name.as_deref() });
        if found.treatment == Treatment::Limit {
            let index = rule.settings.policy?;
            let policy = Cow::Borrowed(policies.get(index)?);
            let key = key(name, descriptor.entries, &path);
            found.charges.push(Charge { level: None, key, policy, index: Some(index) });
        }
        Some(found)
    }

    /// Indices of the rules whose name in metrics does not depend on values of requests.
    pub(crate) fn counted_by_name<'s>(&'s self, rules: &'s [Rule]) -> impl Iterator<Item = usize> {
        let mut below = vec![(0, false)];
        std::iter::from_fn(move || {
            let (at, depends) = below.pop()?;
            let node: &TreeNode = &self.nodes[at];
            let depends = depends || node.value_to_metric;
            let exact =
                node.exact.values().flat_map(|values| values.values()).chain(node.any.values());
            below.extend(exact.map(|&next| (next, depends)));
            let wildcards = node.wildcards.iter();
            below.extend(wildcards.map(|it| (it.node, depends || it.is_named_by_key())));
            let is_detailed =
                |rule: usize| rules[rule].envoy().is_some_and(|it| it.detailed_metric);
            Some(node.rule.filter(|&rule| !depends && !is_detailed(rule)))
        })
        .flatten()
    }

    /// The name in metrics, with the values of `all` entries or of those with `value_to_metric`.
    fn metric<'s>(
        &'s self,
        name: &str,
        descriptor: &Descriptor<'_>,
        path: &[EntryMatch<'_>],
        all: bool,
    ) -> Cow<'s, str> {
        let mut metric = name.to_owned();
        let mut at = 0;
        for ((key, value), by) in descriptor.entries.iter().zip(path) {
            at = self.nodes[at].step(key, value).map_or(at, |(_, next)| next);
            let value = match by {
                EntryMatch::Wildcard(it) if it.share => it.pattern(),
                _ if all || self.nodes[at].value_to_metric => Some(*value),
                EntryMatch::Value => Some(*value),
                EntryMatch::Wildcard(it) => it.pattern(),
                EntryMatch::Key => None,
            };
            push_entry(&mut metric, key, value);
        }
        metric.into()
    }
}

impl TreeNode {
    /// The descriptor below that matches an entry: the exact value first, then wildcards in file order, then the key
    /// alone.
    fn step(&self, key: &str, value: &str) -> Option<(EntryMatch<'_>, usize)> {
        if let Some(next) = self.exact.get(key).and_then(|values| values.get(value)) {
            return Some((EntryMatch::Value, *next));
        }
        if let Some(wildcard) = self.wildcards.iter().find(|it| it.matches(key, value)) {
            return Some((EntryMatch::Wildcard(wildcard), wildcard.node));
        }
        self.any.get(key).map(|next| (EntryMatch::Key, *next))
    }
}

/// `envoy:DOMAIN|KEY=VALUE|...`, with the pattern instead of the value if matching values share a key.
fn key(domain: &str, entries: &[(&str, &str)], path: &[EntryMatch<'_>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    key.extend_from_slice(b"envoy:");
    escape(domain.as_bytes(), &mut key);
    for (index, (name, value)) in entries.iter().enumerate() {
        key.push(b'|');
        escape(name.as_bytes(), &mut key);
        key.push(b'=');
        match path.get(index) {
            // The `%` distinguishes the pattern from an equal value.
            Some(EntryMatch::Wildcard(Wildcard { value: Some(glob), share: true, .. })) => {
                key.push(b'%');
                escape(glob.text.as_bytes(), &mut key);
            }
            _ => escape(value.as_bytes(), &mut key),
        }
    }
    key
}

fn match_without_charges<'s>(rule: &'s Rule, metric: Cow<'s, str>) -> Match<'s> {
    Match {
        rule,
        treatment: Treatment::Limit,
        cost: 1,
        shadow: false,
        on_error: None,
        hold_id: None,
        charges: Charges::new(),
        metric,
        wire: None,
    }
}
