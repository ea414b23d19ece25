//! The reply to an operation on several keys.

use sluicegate_core::MultiKeyDecision;

use crate::{RepeatedKeys, command::ReplyWriter, decision_format::IntegersWriter};

/// Writes the reply to an operation on several keys: an array of the decision, followed by the index of the binding
/// key, and of the decision on each take as given.
pub fn write_multi_key(
    taken: &MultiKeyDecision,
    repeated: &RepeatedKeys,
    writer: &mut (impl IntegersWriter + ReplyWriter),
) {
    let decisions = repeated.decisions(taken);
    writer.array(1 + decisions.len());
    let [allowed, limit, remaining, retry, reset, delay, binding] = taken.decision.to_integers();
    let key = i64::try_from(repeated.binding_key(taken)).unwrap_or(i64::MAX);
    writer.integers(&[allowed, limit, remaining, retry, reset, delay, binding, key]);
    for decision in decisions {
        writer.integers(&decision.to_integers());
    }
}
