//! Rules in words, for people.

use std::fmt::Write as _;

use sluicegate_core::Policy;

use crate::{
    attribute::Attribute,
    condition::Conditions,
    key::Part,
    rule::{Cost, Level, OnError, Overrides, Rule, Settings, Treatment},
    set::RuleSet,
};

/// The most overrides of a rule that are told.
const MOST: usize = 12;

/// A rule in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// Its name, and the line that it begins in.
    pub title: String,
    /// What there is to say of it, each with a label.
    pub lines: Vec<(&'static str, String)>,
    /// The policies that it may use, in the order in which they are told.
    pub policies: Vec<Policy>,
}

impl RuleSet {
    /// The rules in words, in the order written.
    pub fn described(&self) -> impl Iterator<Item = Described> + '_ {
        // What stands for limits that come with a request is no rule that anybody wrote.
        let given: Vec<usize> = self.domains.values().map(|domain| domain.given).collect();
        let rules = self.rules.iter().enumerate().filter(move |(at, _)| !given.contains(at));
        rules.map(|(_, rule)| self.describe(rule))
    }

    fn describe(&self, rule: &Rule) -> Described {
        let mut told = Described {
            title: format!("{} (line {})", rule.name(), rule.line()),
            lines: Vec::new(),
            policies: Vec::new(),
        };
        match rule.envoy() {
            Some(_) => {
                told.lines.push(("applies", "to descriptors at this place of the tree".into()))
            }
            None => told.lines.push(("applies", applies(&rule.conditions))),
        }
        if let Some(warning) = warning(rule) {
            told.lines.push(("warning", warning));
        }
        for level in rule.levels() {
            told.lines.push(("key", key(level)));
            let needed: Vec<_> = level
                .parts()
                .iter()
                .filter(|part| !part.is_optional())
                .map(ToString::to_string)
                .collect();
            if !needed.is_empty() {
                let word = if needed.len() == 1 { "that" } else { "those" };
                let needs =
                    format!("not to requests without {}: {word} it needs", needed.join(", "));
                told.lines.push(("but", needs));
            }
            if let Some(policy) = level.policy {
                self.policy_line(policy, &mut told);
            }
            self.overrides(&level.overrides, &mut told);
        }
        match rule.treatment() {
            Treatment::Unlimited => told.lines.push(("does", "lets through, uncounted".into())),
            Treatment::Block => told.lines.push(("does", "denies".into())),
            Treatment::Limit => {}
        }
        if let Some(policy) = rule.settings.policy {
            self.policy_line(policy, &mut told);
        }
        let rest = Settings { policy: None, treatment: None, ..rule.settings.clone() };
        let rest = self.settings(&rest, &mut told.policies);
        if !rest.is_empty() {
            told.lines.push(("with", rest));
        }
        self.overrides(&rule.overrides, &mut told);
        let ends = rule.treatment() != Treatment::Limit && !rule.is_shadow();
        if rule.envoy().is_none() && (rule.stop || ends) {
            told.lines.push(("then", "no rule behind it is asked".into()));
        }
        told
    }

    fn policy_line(&self, index: usize, told: &mut Described) {
        let policy = self.policies[index].clone();
        told.lines.push(("policy", policy.to_string()));
        if !told.policies.contains(&policy) {
            told.policies.push(policy);
        }
    }

    fn overrides(&self, overrides: &Option<Box<Overrides>>, told: &mut Described) {
        let Some(overrides) = overrides else { return };
        let all = overrides.conditions.iter().zip(&overrides.settings);
        for (conditions, settings) in all.clone().take(MOST) {
            let what = self.settings(settings, &mut told.policies);
            told.lines.push(("override", format!("{}: {what}", applies(conditions))));
        }
        if let Some(more) = overrides.settings.len().checked_sub(MOST).filter(|more| *more > 0) {
            told.lines.push(("override", format!("and {more} more")));
        }
    }

    fn settings(&self, settings: &Settings, policies: &mut Vec<Policy>) -> String {
        let mut words = Vec::new();
        match settings.treatment {
            Some(Treatment::Unlimited) => words.push("lets through, uncounted".to_owned()),
            Some(Treatment::Block) => words.push("denies".to_owned()),
            Some(Treatment::Limit) | None => {}
        }
        if let Some(policy) = settings.policy.map(|index| &self.policies[index]) {
            words.push(policy.to_string());
            if !policies.contains(policy) {
                policies.push(policy.clone());
            }
        }
        match &settings.cost {
            Some(Cost::Units(units)) => words.push(format!("cost {units}")),
            Some(Cost::Of { attribute, min, default }) => {
                words.push(format!(
                    "cost by {attribute} (at least {min}; {default} if it is absent or no number)"
                ));
            }
            None => {}
        }
        match settings.shadow {
            Some(true) => words.push("counted, never enforced".to_owned()),
            Some(false) => words.push("enforced".to_owned()),
            None => {}
        }
        match settings.on_error {
            Some(OnError::Allow) => words.push("allowed while the store is away".to_owned()),
            Some(OnError::Deny) => words.push("denied while the store is away".to_owned()),
            Some(OnError::Local { part, whole }) => {
                words.push(format!("decided here under {part}/{whole} while the store is away"));
            }
            None => {}
        }
        words.join(", ")
    }
}

/// Words in the name or the path of a rule that protects a secret.
const SECURITY: [&str; 3] = ["login", "password", "token"];

/// The spellings that may escape a rule that looks like one against guessing of secrets.
fn warning(rule: &Rule) -> Option<String> {
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
        "paths with {} escape this rule, if the application accepts them; {} in `path` includes them",
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
    let write = |part: &Part, key: &mut String| write!(key, "|<{part}>").unwrap_or_default();
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
