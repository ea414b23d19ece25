//! Rules files through the public interface.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod all_errors;
mod check;
mod costs;
mod documents;
mod envoy;
mod errors;
mod evaluation;
mod examples;
mod hostile;
mod incomplete;
mod many;
mod mistakes;
mod native;
mod quota;
mod repeated;
mod spellings;

use sluicegate_rules::{Descriptor, Format, Match, Request, RuleSet};

/// Parses YAML.
fn rules(text: &str) -> RuleSet {
    RuleSet::parse(text, Format::Yaml).unwrap_or_else(|error| panic!("{error}\n{}", error.excerpt))
}

/// Charges as `RULE KEY POLICY`, with `shadow` in front of shadow rules.
fn charges<'m, 's: 'm>(matches: impl IntoIterator<Item = &'m Match<'s>>) -> Vec<String> {
    let mut charges = Vec::new();
    for found in matches {
        let name = found.rule.name();
        let shadow = if found.shadow { "shadow " } else { "" };
        if found.charges.is_empty() {
            charges.push(format!("{shadow}{name} {:?}", found.treatment));
        }
        for charge in &found.charges {
            let key = String::from_utf8_lossy(&charge.key);
            charges.push(format!("{shadow}{name} {key} {}", charge.policy));
        }
    }
    charges
}

/// Charges of a GET of `target` with headers from a client.
fn get(rules: &RuleSet, target: &str, headers: &[(&str, &str)], client: &str) -> Vec<String> {
    let headers = headers.to_vec();
    let request = Request::http("GET", target, &headers).from(client.parse().unwrap());
    charges(&rules.matches(&request))
}

/// Charges of each descriptor.
fn descriptors(rules: &RuleSet, domain: &str, all: &[&[(&str, &str)]]) -> Vec<Vec<String>> {
    let all: Vec<_> = all.iter().map(|entries| Descriptor { entries, limit: None }).collect();
    rules.descriptors(domain, &all).iter().map(charges).collect()
}
