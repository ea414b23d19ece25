//! Cases of rules that every evaluator must decide alike: the evaluation itself and the server.
//!
//! The format is described at the top of `rules.txt`.

use std::time::Duration;

use sluicegate_core::{Decision, Outcome, Retry};

/// A request of a case, sent `hits` times at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleRequest<'c> {
    /// Time since the start of the case.
    pub at: Duration,
    /// `take`, `peek` or `refund`.
    pub operation: &'c str,
    /// Number of requests, at least 1.
    pub hits: u32,
    /// Path of the request, whose method is GET.
    pub path: &'c str,
    /// Value of the header `u`, if there is one.
    pub user: Option<&'c str>,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedOutcome {
    /// Whether the request passes.
    pub allowed: bool,
    /// Index of the binding match.
    pub binding: Option<usize>,
    /// Each rule that applies.
    pub matches: Vec<ObservedMatch>,
}

/// The outcome of one rule that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMatch {
    /// Name of the rule.
    pub rule: String,
    /// Level of the binding decision.
    pub level: Option<String>,
    /// Whether the rule would allow the request.
    pub allowed: bool,
    /// The binding decision.
    pub decision: Option<Decision>,
}

/// An evaluator of rules under test; each case has a new one.
pub trait RuleSubject {
    /// Evaluates the rules for a request.
    fn evaluate(&mut self, request: &RuleRequest<'_>) -> ObservedOutcome;

    /// Events counted so far for `rule`, by their names in metrics, in the order of the metrics, without those that
    /// are zero.
    fn events(&self, rule: &str) -> Vec<(&'static str, u64)>;
}

/// Runs all cases, each with a new subject for its rules, given in YAML.
///
/// # Panics
/// If a result differs from what the case expects.
pub fn check_rules<S: RuleSubject>(subject: impl Fn(&str) -> S) {
    let text = include_str!("../rules.txt");
    let mut count = 0;
    let mut differences = Vec::new();
    for case in text.split("\n== ").skip(1) {
        let (name, rest) = case.split_once('\n').expect("a name");
        let (rules, steps) = rest.split_once("\n--\n").expect("rules, then steps");
        let mut subject = subject(rules);
        let mut at = Duration::ZERO;
        for step in steps.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (query, expected) = step.split_once("->").expect("an expected result");
            let found = match query.trim().strip_prefix("count ") {
                Some(rule) => events(&subject.events(rule)),
                None => {
                    let request = request(query, &mut at);
                    describe(&subject.evaluate(&request))
                }
            };
            if found != expected.trim() {
                differences.push(format!("{name}:\n  {step}\n  found {found}"));
            }
            count += 1;
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(count > 80, "{count} steps");
}

fn request<'c>(text: &'c str, at: &mut Duration) -> RuleRequest<'c> {
    let mut words = text.split_whitespace().peekable();
    if let Some(time) = words.peek().and_then(|word| word.strip_prefix('@')) {
        let seconds = time.strip_suffix('s').expect("seconds").parse().expect("a number");
        *at = Duration::from_secs(seconds);
        words.next();
    }
    let operation = words.next().expect("an operation");
    let (operation, hits) = operation.split_once('*').unwrap_or((operation, "1"));
    let (path, user) = (words.next().expect("a path"), words.next().expect("a user"));
    let hits = hits.parse().expect("a number of hits");
    RuleRequest { at: *at, operation, hits, path, user: Some(user).filter(|user| *user != "-") }
}

fn describe(outcome: &ObservedOutcome) -> String {
    let mut text = word(outcome.allowed).to_owned();
    if let Some(binding) = outcome.binding {
        text += &format!(" by {}", outcome.matches[binding].rule);
    }
    for found in &outcome.matches {
        let level = found.level.iter().map(|level| format!("/{level}")).collect::<String>();
        text += &format!(" | {}{level} {}", found.rule, word(found.allowed));
        if let Some(Decision { outcome, remaining, .. }) = found.decision {
            text += &format!(" {remaining} left");
            match outcome {
                Outcome::Deny { retry: Retry::After(wait) } => {
                    text += &format!(" in {}", wait.as_secs());
                }
                Outcome::Deny { retry: Retry::Never } => text += " never",
                Outcome::Allow { .. } => {}
            }
        }
    }
    text
}

const fn word(allowed: bool) -> &'static str {
    if allowed { "allow" } else { "deny" }
}

fn events(events: &[(&str, u64)]) -> String {
    let events: Vec<_> = events.iter().map(|(name, count)| format!("{name} {count}")).collect();
    events.join(", ")
}
