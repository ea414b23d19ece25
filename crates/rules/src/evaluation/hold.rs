//! Answers of rules that hold.

use std::time::Duration;

use sluicegate_core::{Answer, HoldError, Operation, Outcome, Retry};

/// A hold that is denied, although the store answers with an error: a client that chooses its id must not pass all
/// rules because of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldDenial {
    /// The id is empty or longer than 64 bytes.
    InvalidId,
    /// As many holds of the key are open as the store opens.
    Full,
}

impl HoldDenial {
    /// The denial for `error`; `None` if it concerns the rule and not the request.
    #[must_use]
    pub const fn of(error: &HoldError) -> Option<Self> {
        match error {
            HoldError::Id(_) => Some(Self::InvalidId),
            HoldError::Full(_) => Some(Self::Full),
            _ => None,
        }
    }

    /// The answer, from a peek of no units at the key.
    pub fn answer(self, mut peek: Answer) -> Answer {
        let retry = match self {
            Self::InvalidId => Retry::Never,
            Self::Full => Retry::After(peek.decision.reset_after),
        };
        peek.decision.outcome = Outcome::Deny { retry };
        peek
    }
}

/// The answer of a rule to `operation` on its hold, from the answer of the store. A settle always allows: a request that
/// was denied has nothing to settle, and a repeated settle changes nothing.
pub fn hold_answer(operation: Operation, mut answer: Answer) -> Answer {
    if let Operation::Settle { .. } = operation {
        answer.decision.outcome = Outcome::Allow { delay: Duration::ZERO };
    }
    answer
}
