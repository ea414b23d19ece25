//! The oracle of one key, and its decisions on requests for several keys that are denied.

use std::time::Duration;

use sluicegate_conformance::{Answer, Invocation, OracleSubject, Subject as _};
use sluicegate_core::{Decision, Operation, Outcome, Policy, Timestamp};

/// An operation on the only key of an oracle.
pub(crate) const fn on_key<'a>(
    policy: &'a Policy,
    operation: Operation<'a>,
    now: Timestamp,
) -> Invocation<'a> {
    Invocation { key: b"key", policy, now, operation }
}

/// The decision on one key of a request for several that is denied: nothing is charged, and limits with `count=all` record
/// it. A state under another policy is migrated, and holds that have expired end. Not for policies that borrow.
pub(crate) fn decide_denied(state: &mut OracleSubject, invocation: Invocation<'_>) -> Answer {
    let Invocation { key, policy, now, operation } = invocation;
    if let Operation::Hold { id, ttl, .. } = operation {
        let renew = Invocation { operation: Operation::Renew { id, ttl }, ..invocation };
        if state.clone().apply(renew)?.allowed() {
            // The hold is open, and the key is allowed without a change.
            return state.apply(Invocation { operation: Operation::Peek(0), ..invocation });
        }
    }
    match operation {
        Operation::Take(cost) | Operation::Hold { cost, .. } => {
            state.record_denial(key, policy, now, cost)
        }
        _ => state.apply(invocation).map(departed),
    }
}

/// The decision without a delay, because nothing departs.
fn departed(decision: Decision) -> Decision {
    match decision.outcome {
        Outcome::Allow { .. } => {
            Decision { outcome: Outcome::Allow { delay: Duration::ZERO }, ..decision }
        }
        Outcome::Deny { .. } => decision,
    }
}
