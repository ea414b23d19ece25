//! Decisions as integers.

use std::time::Duration;

use sluicegate_core::{Decision, Retry, whole_seconds};

/// How a reply shows a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionFormat {
    /// The seven integers of [`Decision::to_integers`].
    Sluicegate,
    /// The five integers of redis-cell: limited (1 or 0), limit, remaining, retry after in seconds (-1 if allowed,
    /// or if it can never pass), reset after in seconds. Seconds are rounded up.
    RedisCell,
}

impl DecisionFormat {
    /// Writes the integers of `decision`.
    #[inline]
    pub fn write(self, decision: &Decision, writer: &mut impl IntegersWriter) {
        match self {
            Self::Sluicegate => writer.integers(&decision.to_integers()),
            Self::RedisCell => writer.integers(&redis_cell_integers(decision)),
        }
    }
}

/// Writes a reply of whole numbers. Their count is a constant, because that makes writing them faster.
pub trait IntegersWriter {
    /// An array of whole numbers.
    fn integers<const N: usize>(&mut self, integers: &[i64; N]);
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
