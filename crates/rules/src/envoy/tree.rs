//! Descriptors of a request, looked up in the tree of their domain.

use std::borrow::Cow;

use ahash::AHashMap;
use sluicegate_core::Policy;
use smallvec::SmallVec;

use super::{Descriptor, Wire, dotted, window};
use crate::{
    escape::escape,
    glob::Glob,
    rule::{Charge, Charges, Match, Rule, Treatment},
};

/// The tree of a domain.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) nodes: Vec<Node>,
    /// The rule that limits which come with a request are told under.
    pub(crate) given: usize,
}

/// A descriptor in the tree: what may stand below it, and its limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) exact: AHashMap<Box<str>, AHashMap<Box<str>, usize>>,
    /// In the order written.
    pub(crate) wild: Vec<Wild>,
    pub(crate) any: AHashMap<Box<str>, usize>,
    /// Its rule, by index among all.
    pub(crate) rule: Option<usize>,
    /// Whether metrics tell the value that it stood for.
    pub(crate) value_to_metric: bool,
}

/// A descriptor with a star in it.
#[derive(Clone, Debug)]
pub(crate) struct Wild {
    pub(crate) key: Box<str>,
    pub(crate) value: Option<Glob>,
    /// All that match share one counter.
    pub(crate) share: bool,
    pub(crate) node: usize,
}

impl Wild {
    fn matches(&self, key: &str, value: &str) -> bool {
        match &self.value {
            Some(glob) => *self.key == *key && glob.matches(value.as_bytes()),
            // A star in the key stands for all that is behind, the value too.
            None => Glob::new(&self.key).matches(format!("{key}_{value}").as_bytes()),
        }
    }
}

/// How an entry was found.
#[derive(Clone, Copy)]
enum By<'t> {
    Value,
    Wild(&'t Wild),
    Key,
}

impl Domain {
    /// The limit for one descriptor, if there is one for just its depth.
    pub(crate) fn find<'s>(
        &'s self,
        name: &str,
        descriptor: &Descriptor<'_>,
        rules: &'s [Rule],
        policies: &'s [Policy],
    ) -> Option<Match<'s>> {
        if let Some((requests, unit)) = descriptor.limit {
            let key = key(name, descriptor.entries, &[]);
            let mut metric = name.to_owned();
            for (key, value) in descriptor.entries {
                dotted(&mut metric, key, Some(Cow::Borrowed(*value)));
            }
            let policy = window(requests, unit).map(Cow::Owned);
            let mut found = plain(&rules[self.given], metric.into());
            found.wire = Some(Wire { rate: Some((requests, unit)), name: None });
            match policy {
                Some(policy) => {
                    found.charges.push(Charge { level: None, key, policy, index: None });
                }
                None => found.treatment = Treatment::Block,
            }
            return Some(found);
        }
        let mut path: SmallVec<[By<'_>; 8]> = SmallVec::new();
        let mut at = 0;
        // Whether metrics tell something of the request, besides what the file says.
        let mut tells = false;
        for (key, value) in descriptor.entries {
            let (by, next) = self.nodes[at].step(key, value)?;
            tells |= self.nodes[next].value_to_metric
                || matches!(by, By::Wild(wild) if wild.value.is_none());
            path.push(by);
            at = next;
        }
        let rule = &rules[self.nodes[at].rule?];
        let envoy = rule.envoy()?;
        let metric = if tells || envoy.detailed_metric {
            self.metric(name, descriptor, &path, envoy.detailed_metric)
        } else {
            Cow::Borrowed(rule.name())
        };
        let mut found = plain(rule, metric);
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

    /// The rules whose name in metrics does not depend on values of requests, by index among all.
    pub(crate) fn counted_by_name<'s>(&'s self, rules: &'s [Rule]) -> impl Iterator<Item = usize> {
        let mut below = vec![(0, false)];
        std::iter::from_fn(move || {
            let (at, depends) = below.pop()?;
            let node: &Node = &self.nodes[at];
            let depends = depends || node.value_to_metric;
            let exact =
                node.exact.values().flat_map(|values| values.values()).chain(node.any.values());
            below.extend(exact.map(|&next| (next, depends)));
            let wild = node.wild.iter();
            below.extend(wild.map(|wild| (wild.node, depends || wild.value.is_none())));
            let is_detailed =
                |rule: usize| rules[rule].envoy().is_some_and(|it| it.detailed_metric);
            Some(node.rule.filter(|&rule| !depends && !is_detailed(rule)))
        })
        .flatten()
    }

    /// What a match is counted under: the values of entries that say so, or of all.
    fn metric<'s>(
        &'s self,
        name: &str,
        descriptor: &Descriptor<'_>,
        path: &[By<'_>],
        all: bool,
    ) -> Cow<'s, str> {
        let mut metric = name.to_owned();
        let mut at = 0;
        for ((key, value), by) in descriptor.entries.iter().zip(path) {
            at = self.nodes[at].step(key, value).map_or(at, |(_, next)| next);
            let told = match by {
                By::Wild(wild) if wild.share => wild.value.as_ref().map(|glob| glob.text()),
                _ if all || self.nodes[at].value_to_metric => Some(*value),
                By::Value => Some(*value),
                By::Wild(wild) => wild.value.as_ref().map(|glob| glob.text()),
                By::Key => None,
            };
            dotted(&mut metric, key, told.map(Cow::Borrowed));
        }
        metric.into()
    }
}

impl Node {
    /// The descriptor below for an entry: the exact value first, then stars in the order written,
    /// then the key alone.
    fn step(&self, key: &str, value: &str) -> Option<(By<'_>, usize)> {
        if let Some(next) = self.exact.get(key).and_then(|values| values.get(value)) {
            return Some((By::Value, *next));
        }
        if let Some(wild) = self.wild.iter().find(|wild| wild.matches(key, value)) {
            return Some((By::Wild(wild), wild.node));
        }
        self.any.get(key).map(|next| (By::Key, *next))
    }
}

/// `envoy:DOMAIN|KEY=VALUE|...`, with the pattern in place of the value where that is shared.
fn key(domain: &str, entries: &[(&str, &str)], path: &[By<'_>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    key.extend_from_slice(b"envoy:");
    escape(domain.as_bytes(), &mut key);
    for (index, (name, value)) in entries.iter().enumerate() {
        key.push(b'|');
        escape(name.as_bytes(), &mut key);
        key.push(b'=');
        match path.get(index) {
            // What is shared is no value: the mark tells it from a value that reads like it.
            Some(By::Wild(Wild { value: Some(glob), share: true, .. })) => {
                key.push(b'%');
                escape(glob.text().as_bytes(), &mut key);
            }
            _ => escape(value.as_bytes(), &mut key),
        }
    }
    key
}

fn plain<'s>(rule: &'s Rule, metric: Cow<'s, str>) -> Match<'s> {
    Match {
        rule,
        treatment: Treatment::Limit,
        cost: 1,
        shadow: false,
        on_error: None,
        charges: Charges::new(),
        metric,
        wire: None,
    }
}
