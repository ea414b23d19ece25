//! Runs the examples in rules files, in virtual time, each with its own state.

use std::{collections::HashMap, time::Duration};

use sluicegate_core::{
    Answer, Entry, EntryOperation, KeyLengthError, Operation, OperationError, Retry, Timestamp,
    apply, apply_all,
};
use smallvec::SmallVec;

use crate::{
    envoy::Descriptor,
    evaluation::{
        ChargeRequest, ChargeSet, DescriptorLimit, EnvoyMode, Evaluation, HoldDenial,
        RuleOperation, RuleOutcome, check_keys, hold_answer, is_over_limit,
    },
    example::{Example, ExampleRequest, Expect},
    key::KeyPart,
    request::Request,
    rule::{Match, Treatment},
    set::{Matches, RuleSet},
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

impl ExampleResult {
    /// The result of the binding match.
    fn of(matches: &[Match<'_>], outcome: &RuleOutcome) -> Self {
        let Some(index) = outcome.binding else { return ALLOWED };
        let (found, bound) = (&matches[index], &outcome.matches[index]);
        match &bound.decision {
            Some(decision) => {
                let level = found.charges.get(bound.charge).and_then(|charge| charge.level);
                let level = level.map(|level| format!("/{level}")).unwrap_or_default();
                Self {
                    allowed: outcome.allowed,
                    rule: Some(format!("{}{level}", found.rule.name)),
                    remaining: Some(decision.remaining),
                    retry: decision.retry(),
                }
            }
            None if found.treatment == Treatment::Block => Self {
                allowed: false,
                rule: Some(found.metric.to_string()),
                remaining: Some(0),
                retry: Some(Retry::Never),
            },
            None => ALLOWED,
        }
    }
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
                let mut position = format!("step {} (line {})", number + 1, step.line);
                if step.times > 1 {
                    position += &format!(", request {turn}");
                }
                if !runner.compare(&step.expect, &result, &position) {
                    break;
                }
            }
        }
        runner.faults
    }
}

impl RuleSet {
    /// Warnings about requests of an example to which no rule applies, although it does not expect that.
    #[must_use]
    pub fn example_warnings(&self, example: &Example) -> Vec<String> {
        let is_checked = example.rules.is_some() || example.keys.is_some();
        let own =
            example.steps.iter().any(|step| step.request.is_none() && step.expect.rule.is_none());
        let own = (own && !is_checked).then_some((example.line, &example.request));
        let steps = example.steps.iter().filter(|step| step.expect.rule.is_none());
        let steps = steps.filter_map(|step| Some((step.line, step.request.as_ref()?)));
        let runner = ExampleRunner { rules: self, entries: HashMap::new(), faults: Vec::new() };
        let all = own.into_iter().chain(steps);
        let unmatched =
            all.filter(|(_, request)| runner.matches(request).iter().all(|it| it.is_empty()));
        unmatched
            .map(|(line, request)| {
                let missing = request.http().map(|it| self.missing_parts(&it)).unwrap_or_default();
                let missing = if missing.is_empty() { missing } else { format!(" ({missing})") };
                format!("line {line}: no rule applies to this request{missing}")
            })
            .collect()
    }

    /// The parts of keys that `request` lacks, of the rules whose conditions match it, in words.
    fn missing_parts(&self, request: &Request<'_>) -> String {
        let matching = self
            .rules
            .iter()
            .filter(|rule| rule.envoy().is_none() && rule.conditions.matches_all(request, None));
        let missing = matching.filter_map(|rule| {
            let path = request.loose_path(rule.conditions.path_options());
            let lacks = |part: &&KeyPart| {
                !part.write(request, |name| rule.conditions.capture(&path, name), &mut Vec::new())
            };
            let parts = rule.levels.iter().flat_map(|level| &level.parts).filter(lacks);
            let mut names: Vec<_> = parts.map(ToString::to_string).collect();
            names.dedup();
            (!names.is_empty())
                .then(|| format!("rule {} needs {}", rule.name(), names.join(" and ")))
        });
        missing.collect::<Vec<_>>().join(", ")
    }
}

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
        let rules: Vec<_> = matches().map(|it| it.rule.name.to_string()).collect();
        let policies = charges().map(|it| it.policy.to_string()).collect();
        let keys = charges().map(|it| String::from_utf8_lossy(&it.key).into_owned()).collect();
        // An example may give a policy by name, or in any spelling.
        let canonical = |text: &String| {
            let named = self.rules.policy(text.strip_prefix('@').unwrap_or(text));
            let policy = named.cloned().map(Ok).unwrap_or_else(|| text.parse());
            policy.map_or_else(|_| text.clone(), |policy| policy.to_string())
        };
        let expected = example.policies.as_ref().map(|all| all.iter().map(canonical).collect());
        for (what, expected, found) in [
            ("rules", &example.rules, rules),
            ("policy", &expected, policies),
            ("key", &example.keys, keys),
        ] {
            if let Some(expected) = expected.as_ref().filter(|expected| **expected != found) {
                let (expected, found) = (list(expected), list(&found));
                self.faults.push(format!("{what}: expected {expected}, found {found}"));
            }
        }
    }

    fn matches(&self, request: &ExampleRequest) -> Vec<Matches<'s>> {
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
        match request {
            ExampleRequest::Http { .. } => {
                let matches = all.into_iter().next().unwrap_or_default();
                match self.evaluate(&matches, 1, now) {
                    Ok(outcome) => ExampleResult::of(&matches, &outcome),
                    Err(KeyLengthError(_)) => REJECTED,
                }
            }
            ExampleRequest::Envoy { hits, .. } => {
                self.decide_descriptors(&all, *hits, now).unwrap_or(REJECTED)
            }
        }
    }

    /// The result of a request with descriptors: that of the one that is denied or has the least remaining.
    fn decide_descriptors(
        &mut self,
        descriptors: &[Matches<'_>],
        hits: u32,
        now: Timestamp,
    ) -> Result<ExampleResult, KeyLengthError> {
        let mut limits: SmallVec<[DescriptorLimit; 2]> = SmallVec::new();
        let mut results = Vec::with_capacity(descriptors.len());
        // All of them first, as the server does: an invalid call charges nothing.
        descriptors.iter().try_for_each(|matches| check_keys(matches))?;
        for matches in descriptors {
            let outcome = self.evaluate(matches, hits, now)?;
            limits.extend(outcome.descriptor_limit(matches));
            let result = ExampleResult::of(matches, &outcome);
            let quota = matches.iter().any(|it| it.envoy_mode() == EnvoyMode::Quota);
            results.push(ExampleResult { allowed: result.allowed || quota, ..result });
        }
        let rank = |it: &ExampleResult| (it.allowed, it.remaining.unwrap_or(u32::MAX));
        let result = results.into_iter().min_by_key(rank).unwrap_or(ALLOWED);
        let over = is_over_limit(limits.iter().map(|limit| (limit.mode, limit.allowed)));
        Ok(ExampleResult { allowed: !over, ..result })
    }

    fn evaluate(
        &mut self,
        matches: &[Match<'_>],
        hits: u32,
        now: Timestamp,
    ) -> Result<RuleOutcome, KeyLengthError> {
        let mut evaluation = Evaluation::new(matches, RuleOperation::Take(hits))?;
        while let Some(set) = evaluation.next_charges() {
            let answers = self.apply(set, now);
            evaluation.record(&answers);
        }
        Ok(evaluation.into_outcome())
    }

    /// Applies the requests of a set, as the server does.
    fn apply(&mut self, set: ChargeSet<'_, '_, '_>, now: Timestamp) -> Vec<Answer> {
        if !set.is_all_or_none() {
            return set.requests().map(|it| self.apply_one(&set, &it, now)).collect();
        }
        let keys = set.requests().map(|request| &request.charge.key);
        let entries = keys.clone().map(|key| self.entries.remove(key).flatten());
        let mut entries: Vec<Option<Entry>> = entries.collect();
        let parts = set.requests().zip(&mut entries).map(|(request, entry)| EntryOperation {
            policy: &request.charge.policy,
            entry,
            operation: set.operation(&request),
        });
        let answer = apply_all(&mut parts.collect::<Vec<_>>(), now);
        self.entries.extend(keys.cloned().zip(entries));
        let answer = answer.expect("several keys without `concurrency`");
        answer.each().iter().map(|decision| Answer::from(*decision)).collect()
    }

    /// Applies one request. A policy has `concurrency` only if its rule holds.
    fn apply_one(
        &mut self,
        set: &ChargeSet<'_, '_, '_>,
        request: &ChargeRequest<'_, '_>,
        now: Timestamp,
    ) -> Answer {
        let policy = &request.charge.policy;
        let entry = self.entries.entry(request.charge.key.clone()).or_default();
        let operation = set.operation(request);
        match apply(policy, entry, now, operation) {
            Ok(decision) => hold_answer(operation, decision.into()),
            Err(error) => {
                let denial = match &error {
                    OperationError::Hold(error) => HoldDenial::of(error),
                    _ => None,
                };
                let denial = denial.expect("an operation that the policy supports");
                let peek = apply(policy, entry, now, Operation::Peek(0));
                denial.answer(peek.expect("every policy supports a peek").into())
            }
        }
    }

    /// Whether the result is as expected.
    fn compare(&mut self, expect: &Expect, found: &ExampleResult, position: &str) -> bool {
        let before = self.faults.len();
        let word = |allowed| if allowed { "allow" } else { "deny" }.to_owned();
        let by = found.rule.as_ref().map(|rule| format!(" by {rule}")).unwrap_or_default();
        let retry = found.retry.map(|retry| match retry {
            Retry::Never => "never".to_owned(),
            Retry::After(span) => format!("{span:?}"),
        });
        let remaining = |it: Option<u32>| it.map(|it| it.to_string());
        let expected_retry = expect.retry_after.map(|it| format!("{it:?}"));
        for (what, expected, found, by) in [
            ("", expect.allowed.map(word), Some(word(found.allowed)), &*by),
            ("rule ", expect.rule.clone(), found.rule.clone(), ""),
            ("remaining ", remaining(expect.remaining), remaining(found.remaining), ""),
            ("retry_after ", expected_retry, retry, ""),
        ] {
            if expected.is_some() && expected != found {
                let [expected, found] = [expected, found].map(|it| it.unwrap_or("none".to_owned()));
                self.faults
                    .push(format!("{position}: expected {what}{expected}, found {found}{by}"));
            }
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
