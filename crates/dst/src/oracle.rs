//! The decisions of the oracle on one key.

use std::time::Duration;

use sluicegate_conformance::{
    HoldInvocation, HoldSubject as _, Invocation, OracleSubject, Subject as _,
};
use sluicegate_core::{Decision, HoldOperation, Operation, Outcome, Timestamp};

use crate::redis_model::{ScriptCall, ScriptOperation};

/// The name of the only key of each oracle.
const KEY: &[u8] = b"key";

/// The decision, which changes the state.
pub(crate) fn decide(
    state: &mut OracleSubject,
    ScriptCall { policy, operation }: ScriptCall<'_>,
    now: Timestamp,
) -> Result<Decision, String> {
    match operation {
        ScriptOperation::OnKey(operation) => {
            state.apply(Invocation { key: KEY, policy, now, operation })
        }
        ScriptOperation::OnHold(operation) => {
            state.apply_hold(HoldInvocation { key: KEY, policy, now, operation })
        }
    }
}

/// The decision on one key of a multi-key take that is denied: nothing is charged, and limits with `count=all` record it. A state
/// under another policy is migrated, and holds that have expired end. Not for policies that borrow.
pub(crate) fn decide_denied(
    state: &mut OracleSubject,
    call: ScriptCall<'_>,
    now: Timestamp,
) -> Result<Decision, String> {
    let cost = match call.operation {
        ScriptOperation::OnKey(Operation::Take(cost)) => cost,
        ScriptOperation::OnHold(HoldOperation::Hold { id, cost, ttl }) => {
            let renew = ScriptOperation::OnHold(HoldOperation::Renew { id, ttl });
            let renewed = decide(&mut state.clone(), ScriptCall { operation: renew, ..call }, now)?;
            if renewed.allowed() {
                // The hold is open, and the key is allowed without a change.
                let peek = ScriptCall { operation: Operation::Peek(0).into(), ..call };
                return decide(state, peek, now);
            }
            cost
        }
        other => return decide(state, ScriptCall { operation: other, ..call }, now).map(departed),
    };
    state.record_denial(KEY, call.policy, now, cost)
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

/// Whether two decisions are equal, or both are errors, whose texts differ.
pub(crate) fn agree(one: &Result<Decision, String>, other: &Result<Decision, String>) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => one == other,
        (one, other) => one.is_err() && other.is_err(),
    }
}
