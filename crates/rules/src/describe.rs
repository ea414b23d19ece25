//! Descriptions of rules in words.

use std::fmt::Write as _;

use sluicegate_core::{Limit, OnError, Policy};

use crate::{
    attribute::Attribute,
    condition::Conditions,
    key::KeyPart,
    rule::{Cost, Level, Overrides, Rule, Settings, Treatment},
    set::RuleSet,
};

/// Maximum number of overrides of a rule that are described.
const MAX_OVERRIDES: usize = 12;

/// Description of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleDescription {
    /// Index of its source.
    pub source: usize,
    /// First line in its source.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// The description, each line with a label.
    pub lines: Vec<(&'static str, String)>,
    /// The policies that it can use, in the order of the lines.
    pub policies: Vec<Policy>,
}

impl RuleSet {
    /// Describes all rules, in file order.
    pub fn described(&self) -> impl Iterator<Item = RuleDescription> + '_ {
        // Limits that come with a request have a rule that no file contains.
        let internal: Vec<usize> = self.domains.values().map(|it| it.request_limits).collect();
        let rules = self.rules.iter().enumerate().filter(move |(at, _)| !internal.contains(at));
        rules.map(|(_, rule)| self.describe(rule))
    }

    fn describe(&self, rule: &Rule) -> RuleDescription {
        let mut description = RuleDescription {
            source: rule.source,
            line: rule.line,
            name: rule.name().to_owned(),
            lines: Vec::new(),
            policies: Vec::new(),
        };
        let lines = &mut description.lines;
        lines.push((
            "applies",
            match rule.envoy() {
                Some(envoy) => format!("to descriptors {}", envoy.entries),
                None => applies(&rule.conditions),
            },
        ));
        lines.extend(self.warnings(rule).into_iter().map(|warning| ("warning", warning)));
        for level in &rule.levels {
            description.lines.push(("key", key(level)));
            let needed = level.parts.iter().filter(|part| !part.optional);
            let needed: Vec<_> = needed.map(ToString::to_string).collect();
            if !needed.is_empty() {
                let skipped = format!("for requests without {}", needed.join(" or "));
                description.lines.push(("skipped", skipped));
            }
            self.policy_line(level.policy, &mut description);
            self.overrides(&level.overrides, &mut description);
        }
        if let Some(treatment) = in_words(rule.treatment()) {
            description.lines.push(("does", treatment.into()));
        }
        self.policy_line(rule.settings.policy, &mut description);
        let rest = Settings { policy: None, treatment: None, ..rule.settings.clone() };
        let rest = self.settings(&rest, &mut description.policies);
        if !rest.is_empty() {
            description.lines.push(("with", rest));
        }
        self.overrides(&rule.overrides, &mut description);
        let policy = rule.settings.policy.and_then(|index| self.policies.get(index));
        if let (Some(quota), Some(policy)) = (rule.quota, policy) {
            description.lines.push(("divided", quota.describe(policy)));
        }
        if let Some(id) = &rule.hold_id {
            description
                .lines
                .push(("held", format!("until the end of the request, under the id in {id}")));
        }
        let ends = rule.treatment() != Treatment::Limit && !rule.is_shadow();
        if rule.envoy().is_none() && (rule.stop || ends) {
            description.lines.push(("then", "later rules are skipped".into()));
        }
        description
    }

    /// The policy with this index in words. It is added to `policies` if it is new.
    fn policy_in_words(&self, index: Option<usize>, policies: &mut Vec<Policy>) -> Option<String> {
        let policy = &self.policies[index?];
        if !policies.contains(policy) {
            policies.push(policy.clone());
        }
        Some(match self.lease_at(index?) {
            0 | 1 => policy.to_string(),
            units => format!("{policy}, in leases of up to {units}"),
        })
    }

    fn policy_line(&self, index: Option<usize>, description: &mut RuleDescription) {
        let policy = self.policy_in_words(index, &mut description.policies);
        description.lines.extend(policy.map(|policy| ("policy", policy)));
    }

    fn overrides(&self, overrides: &Option<Box<Overrides>>, description: &mut RuleDescription) {
        let Some(overrides) = overrides else { return };
        let all = overrides.conditions.iter().zip(&overrides.settings);
        for (conditions, settings) in all.clone().take(MAX_OVERRIDES) {
            let what = self.settings(settings, &mut description.policies);
            description.lines.push(("override", format!("{}: {what}", applies(conditions))));
        }
        let more = overrides.settings.len().saturating_sub(MAX_OVERRIDES);
        if more > 0 {
            description.lines.push(("override", format!("and {more} more")));
        }
    }

    fn settings(&self, settings: &Settings, policies: &mut Vec<Policy>) -> String {
        let treatment = settings.treatment.and_then(in_words).map(ToOwned::to_owned);
        let policy = self.policy_in_words(settings.policy, policies);
        let cost = settings.cost.as_ref().map(|cost| match cost {
            Cost::Units(units) => format!("cost {units}"),
            Cost::Of { attribute, min, default } => format!(
                "cost from {attribute} (at least {min}; {default} if it is missing or not a number)"
            ),
        });
        let shadow = settings.shadow.map(|shadow| match shadow {
            true => "counted, never enforced".to_owned(),
            false => "enforced".to_owned(),
        });
        let on_error = settings.on_error.and_then(|on_error| match on_error {
            OnError::Allow => Some("allowed while the store is unavailable".to_owned()),
            OnError::Deny => Some("denied while the store is unavailable".to_owned()),
            OnError::Local(share) => {
                let part = if share.is_all() { String::new() } else { format!("{share} of ") };
                Some(format!(
                    "decided by each server alone under {part}the limit while the store is unavailable"
                ))
            }
            // Rules cannot set any other.
            _ => None,
        });
        let words = [treatment, policy, cost, shadow, on_error];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl RuleSet {
    /// Warnings about probable mistakes, and about limits that clients can evade.
    fn warnings(&self, rule: &Rule) -> Vec<String> {
        let mut warnings: Vec<String> = strict_path(rule).into_iter().collect();
        let settable = |attribute: &&Attribute| match attribute {
            Attribute::Header(name) => !self.trusted_headers.contains(&**name),
            attribute => attribute.is_set_by_clients(),
        };
        let advice = |attribute: &Attribute| match attribute {
            Attribute::Header(_) => {
                "; if your proxy always sets or removes it, list it under `trusted_headers`"
            }
            _ => "",
        };
        let overrides =
            rule.overrides.iter().chain(rule.levels.iter().flat_map(|it| &it.overrides));
        let mut unlimited: Vec<&Attribute> = overrides
            .flat_map(|it| it.conditions.iter().zip(&it.settings))
            .filter(|(_, settings)| settings.treatment == Some(Treatment::Unlimited))
            .filter_map(|(conditions, _)| only_settable(conditions, settable))
            .collect();
        if rule.treatment() == Treatment::Unlimited {
            unlimited.extend(only_settable(&rule.conditions, settable));
        }
        unlimited.sort_by_key(ToString::to_string);
        unlimited.dedup();
        for attribute in unlimited {
            warnings.push(format!(
                "any client can send {attribute} and is then unlimited{}",
                advice(attribute)
            ));
        }
        let parts = rule.levels.iter().flat_map(|level| &level.parts);
        let mut keys: Vec<(&Attribute, bool)> = parts
            .filter_map(|part| Some((part.attribute().filter(settable)?, part.optional)))
            .collect();
        keys.sort_by_key(|(attribute, optional)| (attribute.to_string(), *optional));
        keys.dedup_by_key(|(attribute, _)| *attribute);
        for (attribute, optional) in keys {
            let omits = if optional { "" } else { ", and is not limited by this rule without it" };
            warnings.push(format!(
                "any client gets a new limit with each value of {attribute}{omits}{}",
                advice(attribute)
            ));
        }
        if rule.envoy().is_some_and(|envoy| envoy.lacks_requests) && rule.settings.policy.is_none()
        {
            warnings.push(
                "rate_limit has no `requests_per_unit`, which means 0: all requests are denied"
                    .into(),
            );
        }
        let is_empty = |level: &Level| level.has_empty_key;
        if rule.levels.iter().any(is_empty) {
            warnings.push(
                "`key: []` counts all requests together; remove the field if this is meant".into(),
            );
        }
        let limits = rule.levels.iter().map(|level| level.policy.or(rule.settings.policy));
        let limits = limits
            .chain([rule.settings.policy])
            .flatten()
            .flat_map(|at| self.policies[at].limits());
        let most = limits.filter(|limit| !limit.borrow()).map(Limit::capacity).min();
        if let (Some(Cost::Units(cost)), Some(most)) = (&rule.settings.cost, most)
            && *cost > most
        {
            warnings.push(format!(
                "all requests are denied: each costs {cost}, and the policy admits at most {most} at once"
            ));
        }
        warnings
    }
}

fn in_words(treatment: Treatment) -> Option<&'static str> {
    match treatment {
        Treatment::Unlimited => Some("allows, without counting"),
        Treatment::Block => Some("denies"),
        Treatment::Limit => None,
    }
}

/// The attribute that clients set and that alone decides whether conditions match, apart from the path
/// and the method; `None` where another, such as the address, has to fit as well.
fn only_settable(
    conditions: &Conditions,
    settable: impl Fn(&&Attribute) -> bool,
) -> Option<&Attribute> {
    let is_open = |attribute: &Attribute| {
        matches!(attribute, Attribute::Method | Attribute::Path | Attribute::LoosePath(_))
    };
    let mut others =
        conditions.0.iter().map(|condition| &condition.attribute).filter(|it| !is_open(it));
    let first = others.clone().next()?;
    others.all(|attribute| settable(&attribute)).then_some(first)
}

/// Words in the name or the path of a rule that protects a secret.
const SECURITY: [&str; 3] = ["login", "password", "token"];

/// The spellings that may escape a rule that protects a secret, by its name or path.
fn strict_path(rule: &Rule) -> Option<String> {
    let conditions = rule.conditions.0.iter().filter(|condition| !condition.not);
    let path = conditions.into_iter().find(|condition| {
        matches!(condition.attribute, Attribute::Path | Attribute::LoosePath(_))
    })?;
    let about = format!("{} {path}", rule.name()).to_ascii_lowercase();
    if !SECURITY.iter().any(|word| about.contains(word)) {
        return None;
    }
    let options = rule.conditions.path_options();
    let strict: Vec<_> = [
        (options.ignore_case, "case: insensitive", "upper case"),
        (options.ignore_trailing_slash, "trailing-slash: ignore", "a slash at the end"),
        (options.strip_parameters, "parameters: strip", ";parameters"),
    ]
    .into_iter()
    .filter(|(loose, ..)| !loose)
    .collect();
    if strict.is_empty() {
        return None;
    }
    let what: Vec<_> = strict.iter().map(|(.., what)| *what).collect();
    let options: Vec<_> = strict.iter().map(|(_, option, _)| format!("`{option}`")).collect();
    Some(format!(
        "paths with {} escape this rule, if the application accepts them; add {} to `path`",
        what.join(", "),
        options.join(", "),
    ))
}

fn applies(conditions: &Conditions) -> String {
    if conditions.0.is_empty() {
        return "to every request".to_owned();
    }
    let words: Vec<_> = conditions.0.iter().map(ToString::to_string).collect();
    format!("where {}", words.join(" and "))
}

/// A key with its parts in angle brackets.
fn key(level: &Level) -> String {
    let mut key = String::new();
    let mut parts = level.parts.iter();
    let write = |part: &KeyPart, key: &mut String| write!(key, "|<{part}>").unwrap_or_default();
    if let Some((before, count)) = &level.shared {
        key += "{";
        key += &String::from_utf8_lossy(before);
        parts.by_ref().take(*count).for_each(|part| write(part, &mut key));
        key += "}";
    }
    key += &String::from_utf8_lossy(&level.prefix);
    parts.for_each(|part| write(part, &mut key));
    key
}
