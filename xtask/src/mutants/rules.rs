//! Bugs of rules: policies by name, their reloads, and descriptors of Envoy.

use super::mutant::{Mutant, mutant};

const EVALUATION: &str = "crates/rules/src/evaluation.rs";
const STORE: &str = "crates/server/src/policies/rule_store.rs";
const ENVOY: &str = "crates/server/src/protocols/envoy/decide.rs";
const RESPONSE: &str = "crates/server/src/protocols/envoy/response.rs";
const EVENTS: &str = "crates/rules/src/evaluation/events.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a policy by name is that of the first rules",
        "crates/server/src/policies/policy_cache.rs",
        "let version = snapshot.number.to_le_bytes();",
        "let version = 1_u64.to_le_bytes();",
    ),
    mutant(
        "a reload keeps the version of the rules",
        STORE,
        "let (version, count) = (before + 1, rules.rules().len());",
        "let (version, count) = (before, rules.rules().len());",
    ),
    mutant(
        "rules that follow invalid ones are not read",
        STORE,
        "            status.digest = Some(digest);\n        }",
        "            status.digest = status.digest.or(Some(digest));\n        }",
    ),
    mutant(
        "a shadow rule denies",
        EVALUATION,
        "            if found.shadow {\n                continue;\n            }\n",
        "",
    ),
    mutant(
        "a request that is denied is charged to shadow rules",
        EVALUATION,
        "            RuleOperation::Take(hits) if !self.outcome.allowed => RuleOperation::Peek(hits),\n",
        "",
    ),
    mutant(
        "rules of one request are charged one by one",
        EVALUATION,
        "self.firsts.len() > 1 && !matches!(self.operation, RuleOperation::Refund(_))",
        "self.firsts.len() > 1 && matches!(self.operation, RuleOperation::Peek(_))",
    ),
    mutant(
        "the cost of a rule counts for one request",
        EVALUATION,
        "found.cost.saturating_mul(operation.hits())",
        "found.cost.max(operation.hits())",
    ),
    mutant(
        "hits that are given back are taken",
        ENVOY,
        "_ if descriptor.is_negative_hits => RuleOperation::Refund(hits),",
        "_ if descriptor.is_negative_hits => RuleOperation::Take(hits),",
    ),
    mutant(
        "a query over gRPC counts",
        ENVOY,
        "0 => RuleOperation::Peek(1),",
        "0 => RuleOperation::Take(1),",
    ),
    mutant(
        "statuses are in reverse order",
        RESPONSE,
        "statuses: outcomes.into_iter().map(status).collect(),",
        "statuses: outcomes.into_iter().rev().map(status).collect(),",
    ),
    mutant(
        "the first descriptor alone denies a call",
        RESPONSE,
        "is_over_limit(limited(&outcomes).map(",
        "is_over_limit(limited(&outcomes).take(1).map(",
    ),
    mutant(
        "metrics of rules count queries",
        EVENTS,
        "RuleOperation::Peek(_) | RuleOperation::Refund(_) => &[],",
        "RuleOperation::Peek(_) | RuleOperation::Refund(_) => self.matches,",
    ),
    mutant(
        "a shadow rule counts its denials of denied calls",
        EVENTS,
        "if is_undecided || !allowed && (outcome.allowed || found.shadow) {",
        "if is_undecided || !allowed && outcome.allowed {",
    ),
    mutant(
        "a quarter of a limit is near",
        EVENTS,
        "u64::from(it.remaining) * 5 < u64::from(it.limit)",
        "u64::from(it.remaining) * 4 < u64::from(it.limit)",
    ),
];
