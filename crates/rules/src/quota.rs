//! Quotas: limits that are divided between Envoys, which enforce their parts without asking (RLQS).
//!
//! A limit of `N` per `P` with a burst of `B` is divided between up to `n` Envoys. Each gets a slot: a token bucket of `B/n`
//! tokens that never changes, and a base rate. The rest of the rate is divided by demand, in units.
//!
//! Invariants, each a property in the tests: the buckets of all slots hold at most `B` tokens; the base rates of all slots
//! and all units together are at most `N` per `P`; the base rate is at least one token per fill.

use sluicegate_core::{GcraName, Limit, Policy};

use crate::{
    error::{Fault, quoted},
    tree::{Fields, Kind, Node, YamlVersion},
};

/// The number of Envoys if a rule does not say it.
const DEFAULT_PROXIES: u32 = 16;
/// Maximum number of Envoys.
const MAX_PROXIES: u32 = 1024;
/// Tokens per fill of the whole rate, for each slot: the base rate of a slot is one of them at least.
const FILL_TOKENS: u32 = 64;
/// Maximum number of units: as many as a `concurrency` limit counts.
const MAX_UNITS: u32 = 65_536;
/// The slowest rate has one unit per slot in it.
const DAY_US: u128 = 86_400_000_000;

/// The setting `quota` of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// The number of Envoys between which the limit is divided at most; `None` is 16, or the burst if that is less.
    proxies: Option<u32>,
}

/// How a limit is divided between Envoys.
///
/// ```
/// use sluicegate_rules::{Format, RuleSet};
///
/// let rules = RuleSet::parse(
///     "rules: [{name: api, match: {domain: shop}, policy: 'gcra:1000/1s:burst=100', quota: true}]",
///     Format::Yaml,
/// )?;
/// let (found, terms) = rules.quota("shop", &[("route", "api")]).expect("the rule applies");
/// assert_eq!(found.rule.name(), "api");
/// assert_eq!((terms.slots, terms.max_tokens), (16, 6));
/// assert!(terms.slots * terms.base + terms.units * terms.unit_tokens <= 1000 * terms.fill_interval);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QuotaTerms {
    /// Number of Envoys that can have a part at one time.
    pub slots: u32,
    /// Tokens that the bucket of an Envoy holds.
    pub max_tokens: u32,
    /// The time between two fills of a bucket, in seconds.
    pub fill_interval: u32,
    /// Tokens per fill of the whole limit.
    pub tokens: u32,
    /// Tokens per fill of each slot.
    pub base: u32,
    /// Units of the rest, which are divided by demand.
    pub units: u32,
    /// Tokens per fill of each unit.
    pub unit_tokens: u32,
}

impl QuotaTerms {
    /// Divides the limit of `policy`. The error says what is expected of the policy.
    fn new(policy: &Policy, quota: Quota) -> Result<Self, String> {
        let expected = "expected one limit that is a `gcra`, `token-bucket` or `leaky-bucket`";
        let limit = match policy.limits() {
            [Limit::Gcra(limit)] if limit.name() != GcraName::LeakyQueue => limit,
            [limit] => {
                return Err(format!(
                    "{expected}, because Envoy enforces it as a token bucket, not `{limit}`"
                ));
            }
            limits => return Err(format!("{expected}, not {} limits", limits.len())),
        };
        if limit.borrow() {
            return Err(format!("{expected} without `borrow`, because Envoy has no debt"));
        }
        let slots = quota.proxies.unwrap_or(DEFAULT_PROXIES.min(limit.burst()));
        if slots > limit.burst() {
            return Err(format!(
                "expected a burst of at least {slots}, one token for each of `proxies`, not {}",
                limit.burst()
            ));
        }
        let (units, period) = (u128::from(limit.limit()), limit.period().as_micros());
        if units * DAY_US < u128::from(slots) * period {
            return Err(format!(
                "expected a rate of at least {slots} per day, one for each of `proxies`"
            ));
        }
        let fill_interval =
            (u128::from(FILL_TOKENS * slots) * period).div_ceil(units * 1_000_000).max(1);
        let tokens = units * fill_interval * 1_000_000 / period;
        let too_fast = || "expected a rate of at most 4294967295 per second".to_owned();
        let tokens = u32::try_from(tokens).map_err(|_| too_fast())?;
        let base = tokens / (FILL_TOKENS * slots);
        let rest = tokens - base * slots;
        let unit_tokens = rest.div_ceil(MAX_UNITS);
        Ok(Self {
            slots,
            max_tokens: limit.burst() / slots,
            fill_interval: u32::try_from(fill_interval).map_err(|_| too_fast())?,
            tokens,
            base,
            units: rest / unit_tokens,
            unit_tokens,
        })
    }
}

impl Quota {
    /// Reads `quota`: a boolean, or a map of settings.
    pub(crate) fn read(node: &Node) -> Result<Option<Self>, Fault> {
        if !matches!(node.kind, Kind::Map(_)) {
            let is_set = node.boolean("quota", YamlVersion::V1_2).map_err(|_| {
                node.fault(format!(
                    "invalid quota {}: expected `true`, or a map such as `{{proxies: 8}}`",
                    node.described()
                ))
            })?;
            return Ok(is_set.then_some(Self { proxies: None }));
        }
        let mut fields = Fields::of(node, "a quota")?;
        let proxies = fields.read("proxies", |node| {
            let proxies = node.number("proxies", 1, YamlVersion::V1_2);
            proxies.ok().filter(|it| *it <= MAX_PROXIES).ok_or_else(|| {
                let shown = node.described();
                node.fault(format!("invalid proxies {shown}: expected 1 to {MAX_PROXIES}"))
            })
        })?;
        fields.finish()?;
        Ok(Some(Self { proxies }))
    }

    /// How the limit of `policy` is divided; the error names the policy.
    pub(crate) fn terms(self, policy: &Policy) -> Result<QuotaTerms, String> {
        QuotaTerms::new(policy, self).map_err(|expected| {
            format!(
                "invalid policy {} of a rule with `quota`: {expected}",
                quoted(&policy.to_string())
            )
        })
    }

    /// The setting in words.
    pub(crate) fn describe(self, policy: &Policy) -> String {
        match self.terms(policy) {
            Ok(terms) => format!(
                "between up to {} Envoys, each with a burst of {}",
                terms.slots, terms.max_tokens
            ),
            Err(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn terms(policy: &str, proxies: Option<u32>) -> Result<QuotaTerms, String> {
        Quota { proxies }.terms(&policy.parse().expect("a policy"))
    }

    #[test]
    fn terms_of_policies_that_cannot_be_divided_are_errors_with_the_reason() {
        let one = "expected one limit that is a `gcra`, `token-bucket` or `leaky-bucket`";
        for (policy, proxies, expected) in [
            (
                "fixed-window:5/1m",
                None,
                format!(
                    "{one}, because Envoy enforces it as a token bucket, not `fixed-window:5/1m`"
                ),
            ),
            ("gcra:5/1s,gcra:9/1m", None, format!("{one}, not 2 limits")),
            (
                "leaky-queue:5/1s",
                None,
                format!(
                    "{one}, because Envoy enforces it as a token bucket, not `leaky-queue:5/1s`"
                ),
            ),
            (
                "gcra:5/1s:borrow",
                None,
                format!("{one} without `borrow`, because Envoy has no debt"),
            ),
            (
                "gcra:5/1s",
                Some(6),
                "expected a burst of at least 6, one token for each of `proxies`, not 5".to_owned(),
            ),
            (
                "gcra:9/3d",
                Some(4),
                "expected a rate of at least 4 per day, one for each of `proxies`".to_owned(),
            ),
            (
                "gcra:4294967295/1ms",
                None,
                "expected a rate of at most 4294967295 per second".to_owned(),
            ),
        ] {
            let policy_text = policy.parse::<Policy>().expect("a policy").to_string();
            let full = format!("invalid policy `{policy_text}` of a rule with `quota`: {expected}");
            assert_eq!(terms(policy, proxies), Err(full));
        }
    }

    #[test]
    fn terms_of_slow_and_sub_second_rates_have_whole_seconds_and_tokens() {
        let slow = terms("gcra:10/1m:burst=4", None).expect("terms");
        assert_eq!((slow.slots, slow.max_tokens), (4, 1));
        assert_eq!((slow.fill_interval, slow.tokens, slow.base), (1536, 256, 1));
        let fast = terms("gcra:100/100ms:burst=100", Some(4)).expect("terms");
        assert_eq!((fast.fill_interval, fast.tokens, fast.max_tokens), (1, 1000, 25));
    }

    proptest! {
        #[test]
        fn terms_never_exceed_the_limit(
            limit in 1..u32::MAX, period_ms in 1..31_622_400_000_u64, burst in 1..u32::MAX, proxies in proptest::option::of(1..1025_u32)
        ) {
            let Ok(policy) = format!("gcra:{limit}/{period_ms}ms:burst={burst}").parse::<Policy>() else { return Ok(()) };
            let Ok(it) = (Quota { proxies }).terms(&policy) else { return Ok(()) };
            let wide = |number: u32| u128::from(number);
            prop_assert!(wide(it.slots) * wide(it.max_tokens) <= wide(burst));
            let assigned = wide(it.slots) * wide(it.base) + wide(it.units) * wide(it.unit_tokens);
            prop_assert!(assigned <= wide(it.tokens));
            // The tokens of a fill are at most those of the policy in that time.
            prop_assert!(wide(it.tokens) * u128::from(period_ms) <= wide(limit) * wide(it.fill_interval) * 1000);
            prop_assert!(it.base >= 1 && it.units >= 1 && it.units <= MAX_UNITS && it.max_tokens >= 1);
            // At most two percent of the rate cannot be assigned.
            prop_assert!(assigned * 50 >= wide(it.tokens) * 49);
        }
    }
}
