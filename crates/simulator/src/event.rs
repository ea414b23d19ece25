//! One operation on a key.

use std::time::Duration;

use sluicegate_core::{Decision, Entry, Operation, OperationError, Policy, Timestamp, apply};

use crate::{error::Fault, kind::Kind};

/// One operation on a key, from any source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The line of the trace it begins on, counted from 1.
    pub line: u64,
    /// Its time.
    pub time: Timestamp,
    /// The key: any bytes.
    pub key: &'a [u8],
    /// Its cost in units; not used by a `reset` or `renew`. Without one, a `settle` charges the units held; any other
    /// operation costs nothing.
    pub cost: Option<u32>,
    /// The text of the policy in force for it; empty for the default one.
    pub policy: &'a [u8],
    /// Which operation it is.
    pub kind: Kind,
    /// The id of its hold; only used by a `hold`, `settle` and `renew`.
    pub id: &'a [u8],
    /// The lifetime of its hold; only used by a `hold` and `renew`, and `None` for that of the policy.
    pub ttl: Option<Duration>,
}

impl<'a> Event<'a> {
    /// The operation under `policy`, with its cost.
    #[must_use]
    pub fn operation(&self, policy: &Policy) -> Operation<'a> {
        let Self { cost: given, id, ttl, .. } = *self;
        let cost = given.unwrap_or(0);
        match self.kind.under(policy) {
            Kind::Take | Kind::Start => Operation::Take(cost),
            Kind::Peek | Kind::End => Operation::Peek(cost),
            Kind::Charge => Operation::Charge(cost),
            Kind::Refund => Operation::Refund(cost),
            Kind::Reset => Operation::Reset,
            Kind::Hold => Operation::Hold { id, cost, ttl },
            Kind::Settle => Operation::Settle { id, used: given },
            Kind::Renew => Operation::Renew { id, ttl },
        }
    }

    /// Applies the operation, under `policy`.
    ///
    /// # Errors
    /// [`Fault`] for an operation that is invalid, or that the policy does not support; the entry is then untouched.
    pub(crate) fn apply(
        &self,
        policy: &Policy,
        entry: &mut Option<Entry>,
    ) -> Result<Decision, Fault> {
        let decision = apply(policy, entry, self.time, self.operation(policy));
        decision.map_err(|error| self.unsupported(error))
    }

    #[cold]
    fn unsupported(&self, error: OperationError) -> Fault {
        match error {
            OperationError::Hold(error) => error.into(),
            error => Fault::Unsupported { kind: self.kind, error },
        }
    }
}
