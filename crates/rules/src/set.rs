//! Sets of compiled rules.

use ahash::{AHashMap, AHashSet};
use sluicegate_core::Policy;

use crate::{
    attribute::Attribute,
    compiled_rule::{CompiledRules, Scope},
    envoy::{Descriptor, DomainTree},
    example::Example,
    index::Index,
    long_values::LongValues,
    quota::QuotaTerms,
    request::{Others, Request},
    rule::{Match, Rule, Treatment},
};

/// Rules that match a request: usually one or two.
pub type Matches<'s> = smallvec::SmallVec<[Match<'s>; 2]>;

/// All rules of one version of the rules files, compiled. It never changes.
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
    /// The units of a lease under each policy; 0: none is set, 1: a lease is ruled out.
    pub(crate) leases: Vec<u32>,
    pub(crate) names: AHashMap<Box<str>, usize>,
    pub(crate) rules: Vec<Rule>,
    /// The rules in Sluicegate's own format, in file order.
    pub(crate) compiled: CompiledRules,
    pub(crate) index: Index,
    pub(crate) domains: AHashMap<Box<str>, DomainTree>,
    pub(crate) examples: Vec<Example>,
    /// Headers and query parameters that rules use.
    pub(crate) from_clients: Vec<Attribute>,
    /// Headers that a proxy always sets or removes, in lower case: rules that use them get no warnings.
    pub(crate) trusted_headers: AHashSet<Box<str>>,
}

impl RuleSet {
    /// The policy called `name`, as in `SG.TAKE key @name`.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.get(*self.names.get(name)?)
    }

    /// The units of a lease that the policy called `name` sets; 0 if it sets none.
    #[must_use]
    pub fn lease(&self, name: &str) -> u32 {
        self.names.get(name).map_or(0, |index| self.lease_at(*index))
    }

    /// Whether a policy sets a lease.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        self.leases.iter().any(|units| *units > 1)
    }

    /// The same for the policy with this index in [`all_policies`](Self::all_policies).
    #[must_use]
    pub fn lease_at(&self, index: usize) -> u32 {
        self.leases.get(index).copied().unwrap_or_default()
    }

    /// The name of a policy similar to `name`. `None` if there are more than 100 policies, because clients can trigger
    /// this search at any rate.
    #[must_use]
    pub fn similar_policy(&self, name: &str) -> Option<&str> {
        const MAX_COMPARED: usize = 100;
        if self.names.len() > MAX_COMPARED {
            return None;
        }
        sluicegate_core::closest(name, &self.policy_names())
    }

    /// The names of all named policies, sorted.
    #[must_use]
    pub fn policy_names(&self) -> Vec<&str> {
        sorted(&self.names)
    }

    /// All policies referenced by rules, for preparation: a [`Charge`](crate::Charge) has an index into these.
    #[must_use]
    pub fn all_policies(&self) -> &[Policy] {
        &self.policies
    }

    /// All rules, in file order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Names of rules in metrics that do not depend on values of requests.
    pub fn metric_names(&self) -> impl Iterator<Item = &str> {
        let by_name = self.domains.values().flat_map(|domain| domain.counted_by_name(&self.rules));
        let by_name: AHashSet<usize> = by_name.collect();
        let rules = self.rules.iter().enumerate();
        let rules = rules.filter(move |(at, rule)| rule.envoy().is_none() || by_name.contains(at));
        rules.map(|(_, rule)| rule.name())
    }

    /// Examples of requests with their expected results.
    #[must_use]
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    /// The rules that apply to `request`, in file order. The request passes if all of them allow it. Rules after one
    /// with `stop`, `block` or `unlimited` do not apply.
    ///
    /// If servers read the target differently, the rules for all readings apply, without repetitions: the request must
    /// pass however the server behind the limiter reads it. Reject a request that is [ambiguous](Self::ambiguous)
    /// instead.
    #[must_use]
    pub fn matches(&self, request: &Request<'_>) -> Matches<'_> {
        let mut matches = Matches::new();
        match request.others() {
            None if !request.has_long_path() => self.find(request, Scope::Requests, &mut matches),
            None => {
                let long_values = LongValues::default();
                self.find(&request.read_as(None, &long_values), Scope::Requests, &mut matches);
            }
            Some(others) => self.find_in_all(request, others, &mut matches),
        }
        matches
    }

    /// A header or query parameter that rules use and that `request` contains several times, with different values.
    /// Applications differ in which one they use. Therefore no rule can match it reliably.
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
        self.find(&request.read_as(None, &long_values), Scope::Requests, matches);
        let read_as = |reading| {
            let mut found = Matches::new();
            self.find(&request.read_as(Some(reading), &long_values), Scope::Requests, &mut found);
            found
        };
        for found in others.readings.iter().flat_map(read_as) {
            if !matches.iter().any(|known| known.is_same(&found)) {
                matches.push(found);
            }
        }
        // A rule exempts the request only if it exempts the path as sent, too. A rule that already limits the request
        // is skipped, because a spelling must not get a key of its own.
        for found in others.as_sent.iter().flat_map(read_as) {
            let same = |known: &&Match<'_>| std::ptr::eq(known.rule, found.rule);
            if !matches.iter().filter(same).any(Match::is_limiting) {
                matches.push(found);
            }
        }
    }

    /// Adds the rules that match `request` and apply to this `scope`.
    fn find<'s>(&'s self, request: &Request<'_>, scope: Scope, matches: &mut Matches<'s>) {
        for at in self.index.find(request) {
            let Some(rule) = self.compiled.get(at, &self.rules) else { continue };
            let known = || self.index.known(usize::try_from(at).ok()?);
            let applies = match scope {
                Scope::Requests => rule.scope() != Scope::Quotas,
                scope => rule.scope() == scope,
            };
            if !applies || !rule.matches(request, known) {
                continue;
            }
            let Some(found) = rule.match_request(request, &self.policies) else { continue };
            let last = rule.stops() || found.treatment != Treatment::Limit && !found.shadow;
            matches.push(found);
            if last {
                break;
            }
        }
    }

    /// The rules that match each of Envoy's descriptors, in their order: the limit in the format of
    /// envoyproxy/ratelimit, if the domain has one, and rules in Sluicegate's own format that use the domain or an
    /// entry in `match` or `key`.
    ///
    /// A limit that another one in the same request `replaces` is left out.
    #[must_use]
    pub fn descriptors(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Vec<Matches<'_>> {
        self.descriptors_as_found(domain, descriptors, |_| ())
    }

    /// The first rule with `quota` that applies to a bucket of Envoy's quota service, and how its limit is divided. The
    /// rule applies to `entries` as one without `quota` does to those of a descriptor. Its match has one charge, whose key is
    /// that of the limit.
    #[must_use]
    pub fn quota(&self, domain: &str, entries: &[(&str, &str)]) -> Option<(Match<'_>, QuotaTerms)> {
        let mut matches = Matches::new();
        self.find(&Request::descriptor(domain, entries), Scope::Quotas, &mut matches);
        let found = matches.into_iter().next()?;
        let terms = found.rule.quota?.terms(&found.charges.first()?.policy).ok()?;
        Some((found, terms))
    }

    /// The rules with `quota`, in file order.
    pub fn quotas(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(|rule| rule.quota.is_some())
    }

    /// Like [`descriptors`](Self::descriptors), but calls `found` with the matches of each descriptor before it
    /// evaluates the next one, also with limits that another one replaces.
    pub fn descriptors_as_found(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        mut found: impl FnMut(&Matches<'_>),
    ) -> Vec<Matches<'_>> {
        let tree = self.domains.get_key_value(domain);
        let mut all: Vec<Matches<'_>> = Vec::with_capacity(descriptors.len());
        let mut replaced: Vec<&str> = Vec::new();
        for descriptor in descriptors {
            // Filled in place, to avoid a copy.
            all.push(Matches::new());
            let Some(matches) = all.last_mut() else { continue };
            if let Some((name, tree)) = tree
                && let Some(limit) = tree.find(name, descriptor, &self.rules, &self.policies)
            {
                let replaces = limit.rule.envoy().map(|it| &it.replaces);
                replaced.extend(replaces.into_iter().flatten().map(|name| &**name));
                matches.push(limit);
            }
            if !self.compiled.is_empty() {
                let request = Request::descriptor(domain, descriptor.entries);
                self.find(&request, Scope::Descriptors, matches);
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

/// Names of policies, sorted.
pub(crate) fn sorted(names: &AHashMap<Box<str>, usize>) -> Vec<&str> {
    let mut names: Vec<&str> = names.keys().map(|name| &**name).collect();
    names.sort_unstable();
    names
}
