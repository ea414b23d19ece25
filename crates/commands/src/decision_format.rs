//! Decisions as integers, and replies part by part.

use std::time::Duration;

use sluicegate_core::{Answer, Decision, Retry, whole_seconds};

use crate::RepeatedKeys;

/// How a reply shows a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionFormat {
    /// The seven integers of [`Decision::to_integers`].
    Sluicegate,
    /// The five integers of redis-cell: limited (1 or 0), limit, remaining, retry after in seconds (-1 if allowed,
    /// or if it can never pass), reset after in seconds. Seconds are rounded up.
    RedisCell,
    /// The two integers of `INCREX`: the units in use, and those that this request of `cost` units has added.
    Increment {
        /// Its units.
        cost: u32,
    },
}

impl DecisionFormat {
    /// Writes the integers of `decision`.
    #[inline]
    pub fn write(self, decision: &Decision, writer: &mut impl IntegersWriter) {
        match self {
            Self::Sluicegate => writer.integers(&decision.to_integers()),
            Self::RedisCell => writer.integers(&redis_cell_integers(decision)),
            Self::Increment { cost } => {
                let used = i64::from(decision.limit) - i64::from(decision.remaining);
                let added = if decision.allowed() { i64::from(cost) } else { 0 };
                writer.integers(&[used, added]);
            }
        }
    }
}

/// Writes a reply of whole numbers. Their count is a constant, because that makes writing them faster.
pub trait IntegersWriter {
    /// An array of whole numbers.
    fn integers<const N: usize>(&mut self, integers: &[i64; N]);
}

/// Writes one reply, part by part.
pub trait ReplyWriter {
    /// A whole number.
    fn integer(&mut self, value: i64);
    /// A string.
    fn string(&mut self, bytes: &[u8]);
    /// No value.
    fn null(&mut self);
    /// The start of an array of `length` parts.
    fn array(&mut self, length: usize);
    /// The start of a map of `length` pairs.
    fn map(&mut self, length: usize);
    /// An error in place of a reply, with its code.
    fn error(&mut self, text: &str);
}

/// Writes the reply to an operation on several keys: an array of the decision, followed by the index of the binding
/// key, and of the decision on each operation as given.
pub fn write_all(
    answer: &Answer,
    repeated: &RepeatedKeys,
    writer: &mut (impl IntegersWriter + ReplyWriter),
) {
    let decisions = repeated.decisions(answer);
    writer.array(1 + decisions.len());
    let [allowed, limit, remaining, retry, reset, delay, binding] = answer.decision.to_integers();
    let key = i64::try_from(repeated.binding_key(answer)).unwrap_or(i64::MAX);
    writer.integers(&[allowed, limit, remaining, retry, reset, delay, binding, key]);
    for decision in decisions {
        writer.integers(&decision.to_integers());
    }
}

fn redis_cell_integers(decision: &Decision) -> [i64; 5] {
    [
        i64::from(!decision.allowed()),
        decision.limit.into(),
        decision.remaining.into(),
        match decision.retry() {
            Some(Retry::After(wait)) => seconds(wait),
            Some(Retry::Never) | None => -1,
        },
        seconds(decision.reset_after),
    ]
}

fn seconds(span: Duration) -> i64 {
    i64::try_from(whole_seconds(span)).unwrap_or(i64::MAX)
}

#[cfg(test)]
impl IntegersWriter for Vec<i64> {
    fn integers<const N: usize>(&mut self, integers: &[i64; N]) {
        self.extend_from_slice(integers);
    }
}
