//! What is asked of a rule each time it is found, in one line of memory.
//!
//! Of ten thousand rules few are in a processor's caches: finding the one for a request takes as long as it
//! waits for lines of memory. A rule has five; what all requests that it is about need of it stands
//! here, and where they need no more, the rule itself is not touched. What many rules have in common
//! stands once, beside the cards, and is at hand.

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

/// All cards, in the order in which rules are asked, with what they have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cards {
    cards: Vec<Card>,
    parts: Vec<KeyPart>,
    conditions: Vec<Arc<Condition>>,
}

/// A rule as it is found.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Card {
    name: Arc<str>,
    /// What its keys begin with.
    prefix: Bytes,
    /// Which of the rules it is.
    rule: u32,
    cost: u32,
    /// Under which policy every request that it is about is counted, under one key, and nothing else is
    /// done; [`NONE`] of any other rule.
    policy: u16,
    /// Of what its keys are made besides; [`NONE`] of nothing.
    part: u16,
    /// What must hold besides the condition that it is found by: [`NONE`] for nothing, [`MORE`] where only
    /// the rule can tell.
    condition: u16,
    stop: bool,
    of_entries: bool,
}

const NONE: u16 = u16::MAX;
const MORE: u16 = NONE - 1;

/// A rule that a request has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn<'s> {
    cards: &'s Cards,
    card: &'s Card,
    pub(crate) rule: &'s Rule,
}

impl Cards {
    /// The cards of rules, each with its place among all; `known` tells which condition of the first,
    /// second, ... of them holds where it is found.
    pub(crate) fn of<'r>(
        rules: impl Iterator<Item = (usize, &'r Rule)>,
        known: impl Fn(usize) -> Option<usize>,
    ) -> Self {
        let mut all = Self::default();
        let (mut parts, mut conditions) = (AHashMap::new(), AHashMap::new());
        for (filed, (at, rule)) in rules.enumerate() {
            let plain = plain(rule);
            let part = plain.as_ref().and_then(|it| it.part);
            let part = part.map(|part| shared(part, part, &mut parts, &mut all.parts));
            let mut others = rule.conditions.0.iter().enumerate();
            let mut other = || others.find(|(at, _)| Some(*at) != known(filed));
            let condition = match (other(), other()) {
                (None, _) => Some(NONE),
                // Rules that say the same share it.
                (Some((_, one)), None) => {
                    shared(one, Arc::as_ptr(one), &mut conditions, &mut all.conditions)
                }
                (Some(_), Some(_)) => None,
            };
            let policy = plain.as_ref().filter(|_| part != Some(None)).map(|it| it.policy);
            all.cards.push(Card {
                name: Arc::clone(&rule.name),
                prefix: plain.as_ref().map(|it| it.prefix.clone()).unwrap_or_default(),
                rule: u32::try_from(at).unwrap_or(u32::MAX),
                cost: plain.as_ref().map_or(1, |it| it.cost),
                policy: policy.unwrap_or(NONE),
                part: part.flatten().unwrap_or(NONE),
                condition: condition.unwrap_or(MORE),
                stop: rule.stop,
                of_entries: rule.of_entries,
            });
        }
        all
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.cards.is_empty()
    }

    /// The rule that was filed as the one at `at`.
    pub(crate) fn draw<'s>(&'s self, at: u32, rules: &'s [Rule]) -> Option<Drawn<'s>> {
        let card = self.cards.get(usize::try_from(at).ok()?)?;
        let rule = rules.get(usize::try_from(card.rule).ok()?)?;
        Some(Drawn { cards: self, card, rule })
    }
}

/// The number of `one` among `all`, of which each is there once; `None` where there are too many.
fn shared<K: Eq + std::hash::Hash, T: Clone>(
    one: &T,
    key: K,
    known: &mut AHashMap<K, u16>,
    all: &mut Vec<T>,
) -> Option<u16> {
    if let Some(number) = known.get(&key) {
        return Some(*number);
    }
    let number = u16::try_from(all.len()).ok().filter(|number| *number < MORE)?;
    all.push(one.clone());
    known.insert(key, number);
    Some(number)
}

impl<'s> Drawn<'s> {
    /// Whether it asks for a domain or an entry of a descriptor.
    pub(crate) const fn is_of_entries(&self) -> bool {
        self.card.of_entries
    }

    /// Whether no rule behind it applies, if it does.
    pub(crate) const fn stops(&self) -> bool {
        self.card.stop
    }

    /// Whether it is about `request`, which it was found for by the condition at `known`.
    pub(crate) fn holds(
        &self,
        request: &Request<'_>,
        known: impl FnOnce() -> Option<usize>,
    ) -> bool {
        match self.card.condition {
            NONE => true,
            MORE => self.rule.conditions.hold(request, known()),
            number => {
                self.cards.conditions.get(usize::from(number)).is_some_and(|it| it.holds(request))
            }
        }
    }

    /// What [`Rule::match_request`] says of a request that it is about.
    pub(crate) fn match_request(
        &self,
        request: &Request<'_>,
        policies: &'s [Policy],
    ) -> Option<Match<'s>> {
        let Self { cards, card, rule } = *self;
        if card.policy == NONE {
            return rule.match_request(request, policies);
        }
        let mut key = Vec::with_capacity(48);
        key.extend_from_slice(&card.prefix);
        if let Some(part) = cards.parts.get(usize::from(card.part))
            && !part.write(request, |_| None, &mut key)
        {
            return None;
        }
        let index = usize::from(card.policy);
        let policy = Cow::Borrowed(policies.get(index)?);
        let mut charges = Charges::new();
        charges.push(Charge { level: None, key, policy, index: Some(index) });
        Some(Match {
            rule,
            treatment: Treatment::Limit,
            cost: card.cost,
            shadow: false,
            on_error: None,
            charges,
            metric: Cow::Borrowed(&card.name),
            wire: None,
        })
    }
}

/// What a rule does that counts every request it is about under one key and one policy.
struct Plain<'r> {
    prefix: &'r Bytes,
    part: Option<&'r KeyPart>,
    policy: u16,
    cost: u32,
}

/// `None` where it depends on the request what is done with it.
fn plain(rule: &Rule) -> Option<Plain<'_>> {
    let settings = &rule.settings;
    let [level @ Level { name: None, shared: None, overrides: None, .. }] = &rule.levels[..] else {
        return None;
    };
    let limits = settings.treatment.unwrap_or_default() == Treatment::Limit;
    let shadow = settings.shadow.unwrap_or(false);
    if !limits || shadow || settings.on_error.is_some() || rule.overrides.is_some() {
        return None;
    }
    let part = match &level.parts[..] {
        [] => None,
        // What a part of the path stands for, only the rule knows.
        [part] if !part.is_capture() => Some(part),
        _ => return None,
    };
    let cost = match &settings.cost {
        None => 1,
        Some(Cost::Units(units)) => *units,
        Some(Cost::Of { .. }) => return None,
    };
    let policy = level.policy.or(settings.policy)?;
    let policy = u16::try_from(policy).ok().filter(|policy| *policy < NONE)?;
    Some(Plain { prefix: &level.prefix, part, policy, cost })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, RuleSet};

    #[test]
    fn it_takes_one_line() {
        assert_eq!(size_of::<Card>(), 64);
    }

    #[test]
    fn a_card_says_what_its_rule_does() {
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
        let plain = rules.cards.cards.iter().filter(|card| card.policy != NONE).count();
        assert_eq!(plain, 4);
        for (method, user) in [("GET", "ada"), ("POST", "gold"), ("GET", "free"), ("GET", "")] {
            for target in ["/a/b", "/c", "/a/"] {
                let headers = [("user", user), ("cost", "7")];
                let some = &headers[usize::from(user.is_empty())..].to_vec();
                let request = Request::http(method, target, some);
                let request = request.from("192.0.2.7".parse().expect("an address"));
                for at in 0..12 {
                    let drawn = rules.cards.draw(at, &rules.rules).expect("a rule");
                    let known = |at: u32| rules.index.known(at as usize);
                    assert_eq!(
                        drawn.holds(&request, || known(at)),
                        drawn.rule.conditions.hold(&request, known(at)),
                    );
                    let said = format!("{:?}", drawn.match_request(&request, &rules.policies));
                    let expected =
                        format!("{:?}", drawn.rule.match_request(&request, &rules.policies));
                    assert_eq!(said, expected);
                }
            }
        }
    }
}
