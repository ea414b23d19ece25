//! Rules compiled into one cache line each.
//!
//! Few of ten thousand rules are in the CPU's cache, so that the time to find a rule is the time of its cache misses. A
//! [`Rule`] takes five lines. A rule that charges one key under one policy is matched from its line here alone; parts of
//! keys and conditions that rules have in common are stored once. ADR 13 has the figures.

use std::{borrow::Cow, sync::Arc};

use ahash::AHashMap;
use sluicegate_core::Policy;

use crate::{
    condition::Condition,
    key::KeyPart,
    prefix_index::Bytes,
    request::Request,
    rule::{Charge, Charges, Cost, Level, Match, Rule, Treatment},
};

/// All compiled rules, in file order, with what they share.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompiledRules {
    rules: Vec<CompiledRule>,
    parts: Vec<KeyPart>,
    conditions: Vec<Arc<Condition>>,
}

/// One compiled rule.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct CompiledRule {
    name: Arc<str>,
    /// Start of its keys.
    prefix: Bytes,
    /// Index of the rule.
    rule: u32,
    cost: u32,
    /// Index of the policy, if the rule does nothing but charge one key under it; else [`NONE`].
    policy: u16,
    /// Index of the part of its keys; [`NONE`] if there is none.
    part: u16,
    /// Index of the condition that must match besides the indexed one: [`NONE`] for none, [`SEVERAL`] if the rule has
    /// more than one.
    condition: u16,
    stop: bool,
    scope: Scope,
}

/// What a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Requests.
    Requests,
    /// Requests, and descriptors of Envoy: it uses the domain or an entry.
    Descriptors,
    /// Buckets of Envoy's quota service, and nothing else.
    Quotas,
}

const NONE: u16 = u16::MAX;
const SEVERAL: u16 = NONE - 1;

/// A rule that the index has found for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchedRule<'s> {
    all: &'s CompiledRules,
    compiled: &'s CompiledRule,
    pub(crate) rule: &'s Rule,
}

impl CompiledRules {
    /// Compiles rules, each with its index. `known` returns the condition of the first, second, ... of them that holds
    /// if the index finds it.
    pub(crate) fn of<'r>(
        rules: impl Iterator<Item = (usize, &'r Rule)>,
        known: impl Fn(usize) -> Option<usize>,
    ) -> Self {
        let mut all = Self::default();
        let (mut parts, mut conditions) = (AHashMap::new(), AHashMap::new());
        for (position, (at, rule)) in rules.enumerate() {
            let simple = simple_charge(rule);
            let part = simple.and_then(|(level, ..)| level.parts.first());
            let part = part.map(|part| share(part, part, &mut parts, &mut all.parts));
            let mut others = rule.conditions.0.iter().enumerate();
            let mut other = || others.find(|(at, _)| Some(*at) != known(position));
            let condition = match (other(), other()) {
                (None, _) => Some(NONE),
                // Rules share equal conditions.
                (Some((_, one)), None) => {
                    share(one, Arc::as_ptr(one), &mut conditions, &mut all.conditions)
                }
                (Some(_), Some(_)) => None,
            };
            let policy = simple.filter(|_| part != Some(None)).map(|(_, policy, _)| policy);
            all.rules.push(CompiledRule {
                name: Arc::clone(&rule.name),
                prefix: simple.map(|(level, ..)| level.prefix.clone()).unwrap_or_default(),
                rule: u32::try_from(at).unwrap_or(u32::MAX),
                cost: simple.map_or(1, |(.., cost)| cost),
                policy: policy.unwrap_or(NONE),
                part: part.flatten().unwrap_or(NONE),
                condition: condition.unwrap_or(SEVERAL),
                stop: rule.stop,
                scope: match (rule.quota, rule.uses_descriptors) {
                    (Some(_), _) => Scope::Quotas,
                    (None, true) => Scope::Descriptors,
                    (None, false) => Scope::Requests,
                },
            });
        }
        all
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rule at a position that the index returned.
    pub(crate) fn get<'s>(&'s self, at: u32, rules: &'s [Rule]) -> Option<MatchedRule<'s>> {
        let compiled = self.rules.get(usize::try_from(at).ok()?)?;
        let rule = rules.get(usize::try_from(compiled.rule).ok()?)?;
        Some(MatchedRule { all: self, compiled, rule })
    }
}

/// The index of `one` in `all`, which has no duplicates; `None` if `all` is full.
fn share<K: Eq + std::hash::Hash, T: Clone>(
    one: &T,
    key: K,
    known: &mut AHashMap<K, u16>,
    all: &mut Vec<T>,
) -> Option<u16> {
    if let Some(number) = known.get(&key) {
        return Some(*number);
    }
    let number = u16::try_from(all.len()).ok().filter(|number| *number < SEVERAL)?;
    all.push(one.clone());
    known.insert(key, number);
    Some(number)
}

impl<'s> MatchedRule<'s> {
    /// What it applies to.
    pub(crate) const fn scope(&self) -> Scope {
        self.compiled.scope
    }

    /// Whether later rules do not apply if it does.
    pub(crate) const fn stops(&self) -> bool {
        self.compiled.stop
    }

    /// Whether all conditions match the request. The one at index `known` matches because the index found the rule.
    pub(crate) fn matches(
        &self,
        request: &Request<'_>,
        known: impl FnOnce() -> Option<usize>,
    ) -> bool {
        match self.compiled.condition {
            NONE => true,
            SEVERAL => self.rule.conditions.matches_all(request, known()),
            number => {
                self.all.conditions.get(usize::from(number)).is_some_and(|it| it.matches(request))
            }
        }
    }

    /// Returns what [`Rule::match_request`] returns.
    pub(crate) fn match_request(
        &self,
        request: &Request<'_>,
        policies: &'s [Policy],
    ) -> Option<Match<'s>> {
        let Self { all, compiled, rule } = *self;
        if compiled.policy == NONE {
            return rule.match_request(request, policies);
        }
        let mut key = Vec::with_capacity(48);
        key.extend_from_slice(&compiled.prefix);
        if let Some(part) = all.parts.get(usize::from(compiled.part))
            && !part.write(request, |_| None, &mut key)
        {
            return None;
        }
        let index = usize::from(compiled.policy);
        let policy = Cow::Borrowed(policies.get(index)?);
        let mut charges = Charges::new();
        charges.push(Charge { level: None, key, policy, index: Some(index) });
        Some(Match {
            rule,
            treatment: Treatment::Limit,
            cost: compiled.cost,
            shadow: false,
            on_error: None,
            hold_id: None,
            charges,
            metric: Cow::Borrowed(&compiled.name),
            wire: None,
        })
    }
}

/// The level, the policy and the cost of a rule that charges one key under one policy and does the same with every
/// request; `None` for any other rule.
fn simple_charge(rule: &Rule) -> Option<(&Level, u16, u32)> {
    let settings = &rule.settings;
    let [level @ Level { name: None, shared: None, overrides: None, .. }] = &rule.levels[..] else {
        return None;
    };
    // Only the rule has the pattern that captures a part of the path.
    let is_simple = level.parts.len() <= 1 && !level.parts.iter().any(KeyPart::is_capture);
    let limits = rule.treatment() == Treatment::Limit && !rule.is_shadow();
    let takes = limits && rule.hold_id.is_none();
    if !is_simple || !takes || settings.on_error.is_some() || rule.overrides.is_some() {
        return None;
    }
    let cost = match &settings.cost {
        None => 1,
        Some(Cost::Units(units)) => *units,
        Some(Cost::Of { .. }) => return None,
    };
    let policy = level.policy.or(settings.policy)?;
    let policy = u16::try_from(policy).ok().filter(|policy| *policy < NONE)?;
    Some((level, policy, cost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, RuleSet};

    #[test]
    fn compiled_rule_takes_one_cache_line() {
        assert_eq!(size_of::<CompiledRule>(), 64);
    }

    #[test]
    fn match_request_equals_that_of_the_rule() {
        let rules = RuleSet::parse(
            "
policies: {few: 'gcra:1/1s', many: 'gcra:9/1s'}
rules:
  - {name: all, policy: few}
  - {name: user, key: header.user, policy: many, cost: 3}
  - {name: other, key: 'header.user?', policy: few, match: {method: GET, path: '/a/**'}}
  - {name: both, key: [client, header.user], policy: few}
  - {name: part, key: path.name, policy: few, match: {path: '/a/{name}'}}
  - {name: costly, key: client, policy: few, cost: header.cost}
  - {name: trial, key: client, policy: few, shadow: true}
  - {name: patient, key: client, policy: few, on_error: allow}
  - name: plans
    key: client
    policy: few
    overrides: [{match: {header.user: gold}, policy: many}]
  - name: levels
    levels: [{name: one, key: header.user, policy: few}, {name: rest, policy: many}]
  - {name: post, match: {method: POST, path: /a/b, header.user: '*'}, key: client, policy: few}
  - {name: free, match: {header.user: free}, unlimited: true}
",
            Format::Yaml,
        )
        .expect("rules");
        let simple = rules.compiled.rules.iter().filter(|it| it.policy != NONE).count();
        assert_eq!(simple, 4);
        for (method, user) in [("GET", "ada"), ("POST", "gold"), ("GET", "free"), ("GET", "")] {
            for target in ["/a/b", "/c", "/a/"] {
                let headers = [("user", user), ("cost", "7")];
                let given = &headers[usize::from(user.is_empty())..].to_vec();
                let request = Request::http(method, target, given);
                let request = request.from("192.0.2.7".parse().expect("an address"));
                for at in 0..12 {
                    let matched = rules.compiled.get(at, &rules.rules).expect("a rule");
                    let known = |at: u32| rules.index.known(at as usize);
                    assert_eq!(
                        matched.matches(&request, || known(at)),
                        matched.rule.conditions.matches_all(&request, known(at)),
                    );
                    let found = format!("{:?}", matched.match_request(&request, &rules.policies));
                    let expected =
                        format!("{:?}", matched.rule.match_request(&request, &rules.policies));
                    assert_eq!(found, expected);
                }
            }
        }
    }
}
