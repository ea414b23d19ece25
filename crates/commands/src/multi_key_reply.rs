//! The reply to an operation on several keys.

use sluicegate_core::MultiKeyDecision;

use crate::{command::ReplyWriter, decision_format::IntegersWriter};

/// Writes the reply to an operation on several keys: an array of the decision, followed by the index of the binding
/// key, and of the decision on each key.
pub fn write_multi_key(taken: &MultiKeyDecision, writer: &mut (impl IntegersWriter + ReplyWriter)) {
    writer.array(1 + taken.each.len());
    let [allowed, limit, remaining, retry, reset, delay, binding] = taken.decision.to_integers();
    let key = i64::try_from(taken.key).unwrap_or(i64::MAX);
    writer.integers(&[allowed, limit, remaining, retry, reset, delay, binding, key]);
    for decision in &taken.each {
        writer.integers(&decision.to_integers());
    }
}
