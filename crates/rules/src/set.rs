//! Compiled sets of rules.

use ahash::{AHashMap, AHashSet};
use sluicegate_core::Policy;

use crate::{
    attribute::Attribute,
    card::Cards,
    envoy::{Descriptor, Domain},
    example::Example,
    index::Index,
    long_values::LongValues,
    request::{Others, Request},
    rule::{Match, Rule, Treatment},
};

/// Rules that apply to a request: few.
pub type Matches<'s> = smallvec::SmallVec<[Match<'s>; 2]>;

/// All rules, compiled. Never changes: another file makes another set.
///
/// ```
/// use sluicegate_rules::{Format, Request, RuleSet};
///
/// let rules = RuleSet::parse(
///     "
///     rules:
///       - name: login
///         match: {method: POST, path: /login}
///         key: client
///         policy: sliding-log:5/15m
///     ",
///     Format::Yaml,
/// )?;
/// let request = Request::http("POST", "/login", &()).from("203.0.113.7".parse()?);
/// let matches = rules.matches(&request);
/// assert_eq!(matches[0].rule.name(), "login");
/// assert_eq!(matches[0].charges[0].key, b"rule:login|203.0.113.7");
/// assert_eq!(matches[0].charges[0].policy.to_string(), "sliding-log:5/15m");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    pub(crate) policies: Vec<Policy>,
    pub(crate) names: AHashMap<Box<str>, usize>,
    pub(crate) rules: Vec<Rule>,
    /// The rules that are found by their conditions, in order.
    pub(crate) cards: Cards,
    pub(crate) index: Index,
    pub(crate) domains: AHashMap<Box<str>, Domain>,
    pub(crate) examples: Vec<Example>,
    /// Headers and parameters of queries that rules use.
    pub(crate) from_clients: Vec<Attribute>,
    /// Headers that a proxy sets, in lower case: rules that use them get no warnings.
    pub(crate) trusted_headers: AHashSet<Box<str>>,
}

impl RuleSet {
    /// The policy called `name`, as in `SG.TAKE key @name`.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.get(*self.names.get(name)?)
    }

    /// The name of a policy that `name` probably means. Not searched for among more than 100, because
    /// a client decides how often it is.
    #[must_use]
    pub fn similar_policy(&self, name: &str) -> Option<&str> {
        const MAX_COMPARED: usize = 100;
        if self.names.len() > MAX_COMPARED {
            return None;
        }
        sluicegate_core::closest(name, &self.policy_names())
    }

    /// The names of all policies that have one, in the order of the alphabet.
    #[must_use]
    pub fn policy_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.names.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// All policies referenced by rules, for preparation: a [`Charge`](crate::Charge) has an index into these.
    #[must_use]
    pub fn all_policies(&self) -> &[Policy] {
        &self.policies
    }

    /// All rules, in the order written.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Names that metrics count rules under, as far as they do not depend on values of requests.
    pub fn metric_names(&self) -> impl Iterator<Item = &str> {
        let by_name = self.domains.values().flat_map(|domain| domain.counted_by_name(&self.rules));
        let by_name: AHashSet<usize> = by_name.collect();
        let rules = self.rules.iter().enumerate();
        let rules = rules.filter(move |(at, rule)| rule.envoy().is_none() || by_name.contains(at));
        rules.map(|(_, rule)| rule.name())
    }

    /// Examples of requests with what is expected of them.
    #[must_use]
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    /// Whether limits in envoyproxy's form are there for `domain`.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The rules that apply to `request`, in file order. The request passes if all of them allow it. Rules after one
    /// with `stop`, `block` or `unlimited` do not apply.
    ///
    /// A target that servers read differently has the rules of all its readings, without repetitions: it must
    /// pass whatever the server behind the limiter makes of it. Reject a request that is
    /// [ambiguous](Self::ambiguous) instead.
    #[must_use]
    pub fn matches(&self, request: &Request<'_>) -> Matches<'_> {
        let mut matches = Matches::new();
        match request.others() {
            None if !request.has_long_path() => self.find(request, false, &mut matches),
            None => {
                let long_values = LongValues::default();
                self.find(&request.read_as(None, &long_values), false, &mut matches);
            }
            Some(others) => self.find_in_all(request, others, &mut matches),
        }
        matches
    }

    /// A header or a parameter of the query that rules use and that `request` gives several times, with
    /// different values. Applications differ in which one they use, so no rule can tell what it is about.
    #[must_use]
    pub fn ambiguous(&self, request: &Request<'_>) -> Option<&Attribute> {
        self.from_clients.iter().find(|attribute| request.is_ambiguous(attribute))
    }

    /// Adds the rules that apply to any reading of the target.
    #[cold]
    fn find_in_all<'s>(
        &'s self,
        request: &Request<'_>,
        others: &Others<'_>,
        matches: &mut Matches<'s>,
    ) {
        let long_values = LongValues::default();
        self.find(&request.read_as(None, &long_values), false, matches);
        let read_as = |reading| {
            let mut found = Matches::new();
            self.find(&request.read_as(Some(reading), &long_values), false, &mut found);
            found
        };
        for found in others.readings.iter().flat_map(read_as) {
            if !matches.iter().any(|known| known.is_same(&found)) {
                matches.push(found);
            }
        }
        // An exemption from a rule holds if the path as sent is exempt too. A rule that limits the request
        // already is not asked again, so that a spelling makes no key of its own.
        for found in others.as_sent.iter().flat_map(read_as) {
            let same = |known: &&Match<'_>| std::ptr::eq(known.rule, found.rule);
            if !matches.iter().filter(same).any(Match::is_limiting) {
                matches.push(found);
            }
        }
    }

    /// Adds the rules that apply to `request`; only those that ask for entries of descriptors, where that
    /// is `of_entries`.
    fn find<'s>(&'s self, request: &Request<'_>, of_entries: bool, matches: &mut Matches<'s>) {
        for at in self.index.find(request) {
            let Some(drawn) = self.cards.draw(at, &self.rules) else { continue };
            let known = || self.index.known(usize::try_from(at).ok()?);
            if (of_entries && !drawn.is_of_entries()) || !drawn.holds(request, known) {
                continue;
            }
            let Some(found) = drawn.match_request(request, &self.policies) else { continue };
            let last = drawn.stops() || found.treatment != Treatment::Limit && !found.shadow;
            matches.push(found);
            if last {
                break;
            }
        }
    }

    /// What applies to each of Envoy's descriptors, in their order: the limit of envoyproxy's form,
    /// if the domain has one for it, and the rules of our own form that match its entries. Those that
    /// ask for neither a domain nor an entry, in `match` or `key`, are about other requests.
    ///
    /// A limit whose name another one in the same request `replaces` is left out.
    #[must_use]
    pub fn descriptors(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Vec<Matches<'_>> {
        self.descriptors_as_found(domain, descriptors, |_| ())
    }

    /// Like [`descriptors`](Self::descriptors), but calls `found` with the matches of each descriptor before it
    /// evaluates the next one, also with limits that another one replaces.
    pub fn descriptors_as_found(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        mut found: impl FnMut(&Matches<'_>),
    ) -> Vec<Matches<'_>> {
        let tree = self.domains.get(domain);
        let mut all: Vec<Matches<'_>> = Vec::with_capacity(descriptors.len());
        let mut replaced: Vec<&str> = Vec::new();
        for descriptor in descriptors {
            // Filled in place, to avoid a copy.
            all.push(Matches::new());
            let Some(matches) = all.last_mut() else { continue };
            if let Some((name, tree)) =
                self.domains.get_key_value(domain).filter(|_| tree.is_some())
                && let Some(limit) = tree.find(name, descriptor, &self.rules, &self.policies)
            {
                let replaces = limit.rule.envoy().map(|it| &it.replaces);
                replaced.extend(replaces.into_iter().flatten().map(|name| &**name));
                matches.push(limit);
            }
            if !self.cards.is_empty() {
                let request = Request::descriptor(domain, descriptor.entries);
                self.find(&request, true, matches);
            }
            found(matches);
        }
        if !replaced.is_empty() {
            for matches in &mut all {
                matches.retain(|found| {
                    let name = found.wire.and_then(|wire| wire.name);
                    name.is_none_or(|name| !replaced.contains(&name))
                });
            }
        }
        all
    }
}
