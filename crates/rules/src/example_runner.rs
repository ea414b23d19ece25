//! Runs the examples in rules files, in virtual time, each with its own state.

use std::{collections::HashMap, time::Duration};

use sluicegate_core::{Entry, Joint, Part, Retry, Timestamp, take_together};

use crate::{
    envoy::Descriptor,
    example::{Example, ExampleRequest, Expect},
    rule::{Charge, Match, Treatment},
    set::RuleSet,
};

/// Start of every example: 2026-01-01T00:00:00Z, at which windows with `align=clock` start too.
const START: Duration = Duration::from_secs(1_767_225_600);

/// Result of a request.
#[derive(Clone, Debug)]
struct ExampleResult {
    allowed: bool,
    /// The binding rule, with its level.
    rule: Option<String>,
    remaining: Option<u32>,
    retry: Option<Retry>,
}

impl RuleSet {
    /// Runs an example in virtual time, and returns one line for each difference from the expected results.
    #[must_use]
    pub fn run_example(&self, example: &Example) -> Vec<String> {
        let mut runner = ExampleRunner { rules: self, entries: HashMap::new(), faults: Vec::new() };
        runner.compare_matches(example);
        for (number, step) in example.steps.iter().enumerate() {
            let request = step.request.as_ref().unwrap_or(&example.request);
            let now = Timestamp::EPOCH + START + step.at;
            for turn in 1..=step.times {
                let result = runner.decide(request, now);
                let place = if step.times > 1 {
                    format!("step {} (line {}), request {turn}", number + 1, step.line)
                } else {
                    format!("step {} (line {})", number + 1, step.line)
                };
                if !runner.compare(&step.expect, &result, &place) {
                    break;
                }
            }
        }
        runner.faults
    }
}

/// A charge and its match.
type Charged<'m, 'r> = (&'m Match<'r>, &'m Charge<'r>);

struct ExampleRunner<'s> {
    rules: &'s RuleSet,
    entries: HashMap<Vec<u8>, Option<Entry>>,
    faults: Vec<String>,
}

impl<'s> ExampleRunner<'s> {
    fn compare_matches(&mut self, example: &Example) {
        let all = self.matches(&example.request);
        let matches = || all.iter().flatten();
        let charges = || matches().flat_map(|it| &it.charges);
        let rules: Vec<_> = matches().map(|it| it.rule.name().to_owned()).collect();
        let policies: Vec<_> = charges().map(|it| it.policy.to_string()).collect();
        let keys: Vec<_> =
            charges().map(|it| String::from_utf8_lossy(&it.key).into_owned()).collect();
        // An example may give a policy by name, or in any spelling.
        let canonical = |text: &String| {
            let named = self.rules.policy(text.strip_prefix('@').unwrap_or(text));
            let policy = named.cloned().map(Ok).unwrap_or_else(|| text.parse());
            policy.map_or_else(|_| text.clone(), |policy| policy.to_string())
        };
        let expected: Option<Vec<_>> =
            example.policies.as_ref().map(|all| all.iter().map(canonical).collect());
        for (what, expected, found) in [
            ("rules", &example.rules, rules),
            ("policy", &expected, policies),
            ("key", &example.keys, keys),
        ] {
            if expected.as_ref().is_some_and(|expected| *expected != found) {
                let expected = expected.as_deref().unwrap_or_default();
                self.faults.push(format!(
                    "{what}: expected {}, found {}",
                    list(expected),
                    list(&found)
                ));
            }
        }
    }

    fn matches(&self, request: &ExampleRequest) -> Vec<crate::Matches<'s>> {
        match request {
            ExampleRequest::Http { .. } => {
                request.http().map(|it| self.rules.matches(&it)).into_iter().collect()
            }
            ExampleRequest::Envoy { domain, descriptors, .. } => {
                let entries: Vec<Vec<(&str, &str)>> = descriptors
                    .iter()
                    .map(|it| it.iter().map(|(key, value)| (&**key, &**value)).collect())
                    .collect();
                let descriptors: Vec<_> =
                    entries.iter().map(|entries| Descriptor { entries, limit: None }).collect();
                self.rules.descriptors(domain, &descriptors)
            }
        }
    }

    fn decide(&mut self, request: &ExampleRequest, now: Timestamp) -> ExampleResult {
        if request.http().is_some_and(|request| self.rules.ambiguous(&request).is_some()) {
            return REJECTED;
        }
        let all = self.matches(request);
        let ExampleRequest::Envoy { hits, .. } = request else {
            let matches: Vec<_> = all.into_iter().flatten().collect();
            return self.decide_matches(&matches, 1, now);
        };
        // Descriptors are independent; quota limits only deny together.
        let mut worst: Option<ExampleResult> = None;
        let (mut quotas, mut over) = (0, 0);
        for matches in &all {
            let result = self.decide_matches(matches, *hits, now);
            let quota = matches.iter().any(|it| it.rule.envoy().is_some_and(|it| it.quota_mode));
            quotas += usize::from(quota);
            over += usize::from(quota && !result.allowed);
            let result = ExampleResult { allowed: result.allowed || quota, ..result };
            let rank = |it: &ExampleResult| (it.allowed, it.remaining.unwrap_or(u32::MAX));
            if worst.as_ref().is_none_or(|worst| rank(&result) < rank(worst)) {
                worst = Some(result);
            }
        }
        let result = worst.unwrap_or(ALLOWED);
        let all_over = quotas > 0 && over == quotas;
        ExampleResult { allowed: result.allowed && !all_over, ..result }
    }

    /// Takes from all enforced rules or from none, and then charges the shadow rules.
    fn decide_matches(
        &mut self,
        matches: &[Match<'_>],
        hits: u32,
        now: Timestamp,
    ) -> ExampleResult {
        let enforced = matches.iter().filter(|it| !it.shadow);
        if let Some(block) = enforced.clone().find(|it| it.treatment == Treatment::Block) {
            let rule = Some(block.metric.to_string());
            return ExampleResult {
                allowed: false,
                rule,
                retry: Some(Retry::Never),
                remaining: Some(0),
            };
        }
        let charges: Vec<_> =
            enforced.flat_map(|it| it.charges.iter().map(move |charge| (it, charge))).collect();
        let (owners, joint) = self.ask(&charges, hits, now);
        let mut result = ALLOWED;
        if let Some(Joint { decision, key, .. }) = joint
            && let Some((found, charge)) = owners.get(key)
        {
            let level = charge.level.map(|level| format!("/{level}")).unwrap_or_default();
            result = ExampleResult {
                allowed: decision.allowed(),
                rule: Some(format!("{}{level}", found.rule.name())),
                remaining: Some(decision.remaining),
                retry: decision.retry(),
            };
        }
        for shadow in matches.iter().filter(|it| it.shadow && result.allowed) {
            let charges: Vec<_> = shadow.charges.iter().map(|charge| (shadow, charge)).collect();
            let _ = self.ask(&charges, hits, now);
        }
        result
    }

    /// Takes from all keys or from none. A key that several rules share is taken once, for the first of them. Returns
    /// the charges that were taken.
    fn ask<'m, 'r>(
        &mut self,
        charges: &[Charged<'m, 'r>],
        hits: u32,
        now: Timestamp,
    ) -> (Vec<Charged<'m, 'r>>, Option<Joint>) {
        let mut owners: Vec<Charged<'m, 'r>> = Vec::with_capacity(charges.len());
        for charged in charges {
            if owners.iter().all(|owner| owner.1.key != charged.1.key) {
                owners.push(*charged);
            }
        }
        let entries = owners.iter().map(|(_, charge)| self.entries.remove(&charge.key).flatten());
        let mut entries: Vec<Option<Entry>> = entries.collect();
        let parts = owners.iter().zip(&mut entries).map(|((found, charge), entry)| Part {
            policy: &charge.policy,
            entry,
            cost: found.cost.saturating_mul(hits),
        });
        let joint = take_together(&mut parts.collect::<Vec<_>>(), now);
        for ((_, charge), entry) in owners.iter().zip(entries) {
            self.entries.insert(charge.key.clone(), entry);
        }
        (owners, joint)
    }

    /// Whether the result is as expected.
    fn compare(&mut self, expect: &Expect, found: &ExampleResult, place: &str) -> bool {
        let before = self.faults.len();
        let word = |allowed| if allowed { "allow" } else { "deny" };
        if expect.allowed.is_some_and(|allowed| allowed != found.allowed) {
            let by = found.rule.as_ref().map(|rule| format!(" by {rule}")).unwrap_or_default();
            let expected = word(!found.allowed);
            self.faults
                .push(format!("{place}: expected {expected}, found {}{by}", word(found.allowed)));
        }
        if let Some(rule) = &expect.rule
            && found.rule.as_deref() != Some(rule)
        {
            let found = found.rule.as_deref().unwrap_or("none");
            self.faults.push(format!("{place}: expected rule {rule}, found {found}"));
        }
        if let Some(remaining) = expect.remaining
            && found.remaining != Some(remaining)
        {
            let found = found.remaining.map_or("none".to_owned(), |it| it.to_string());
            self.faults.push(format!("{place}: expected remaining {remaining}, found {found}"));
        }
        if let Some(expected) = expect.retry_after
            && found.retry != Some(Retry::After(expected))
        {
            let found = match found.retry {
                None => "none".to_owned(),
                Some(Retry::Never) => "never".to_owned(),
                Some(Retry::After(span)) => format!("{span:?}"),
            };
            self.faults.push(format!("{place}: expected retry_after {expected:?}, found {found}"));
        }
        self.faults.len() == before
    }
}

/// The result of a request that the server rejects before it evaluates rules.
const REJECTED: ExampleResult =
    ExampleResult { allowed: false, rule: None, remaining: None, retry: None };

const ALLOWED: ExampleResult =
    ExampleResult { allowed: true, rule: None, remaining: None, retry: None };

fn list(texts: &[String]) -> String {
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}
