//! An invocation as a command, and the answer from its reply.

use std::time::Duration;

use sluicegate_core::{Decision, HoldOperation, MultiKeyDecision, Operation, Timestamp, as_micros};

use crate::{Answer, HoldInvocation, Invocation, MultiKeyTake};

/// Applies an invocation to a server that supports the `SG.*` commands with `AT`. `call` sends a command and returns
/// its reply; `integers` returns the integers of a decision.
///
/// # Errors
/// Those of `call`.
///
/// # Panics
/// If the integers are not a decision.
pub fn apply_over_the_wire<V>(
    invocation: Invocation<'_>,
    mut call: impl FnMut(&[&[u8]]) -> Result<V, String>,
    integers: impl FnOnce(&V) -> Vec<i64>,
) -> Answer {
    let Invocation { key, policy, now, operation } = invocation;
    let at = now.as_micros().to_string();
    let mut max_wait = String::new();
    let (name, cost) = match operation {
        Operation::Take(cost) => ("SG.TAKE", cost),
        Operation::Peek(cost) => ("SG.PEEK", cost),
        Operation::Charge(cost) => ("SG.CHARGE", cost),
        Operation::Refund(cost) => ("SG.REFUND", cost),
        Operation::Reserve { cost, max_wait: span } => {
            // No debt is longer; therefore a longer wait has the same effect as the maximum of the command.
            max_wait = span.as_micros().min(1 << 50).to_string();
            ("SG.RESERVE", cost)
        }
        Operation::Reset => {
            call(&[b"SG.RESET", key, b"AT", at.as_bytes()])?;
            ("SG.PEEK", 0)
        }
    };
    let (policy, cost) = (policy.to_string(), cost.to_string());
    let mut command: Vec<&[u8]> = vec![name.as_bytes(), key, policy.as_bytes()];
    command.extend([b"AT".as_slice(), at.as_bytes(), b"COST", cost.as_bytes()]);
    if !max_wait.is_empty() {
        command.extend([b"MAXWAIT".as_slice(), max_wait.as_bytes()]);
    }
    let reply = integers(&call(&command)?);
    Ok(Decision::from_integers(&reply).unwrap_or_else(|| panic!("not a decision: {reply:?}")))
}

/// Applies an operation to a hold of a server that supports the `SG.*` commands with `AT`, as [`apply_over_the_wire`].
///
/// # Errors
/// Those of `call`.
///
/// # Panics
/// If the integers are not a decision.
pub fn apply_hold_over_the_wire<V>(
    invocation: HoldInvocation<'_>,
    mut call: impl FnMut(&[&[u8]]) -> Result<V, String>,
    integers: impl FnOnce(&V) -> Vec<i64>,
) -> Answer {
    let HoldInvocation { key, policy, now, operation } = invocation;
    let (name, number, ttl) = match operation {
        HoldOperation::Hold { cost, ttl, .. } => ("SG.HOLD", Some(("COST", cost)), ttl),
        HoldOperation::Settle { used, .. } => ("SG.SETTLE", used.map(|used| ("USED", used)), None),
        HoldOperation::Renew { ttl, .. } => ("SG.RENEW", None, ttl),
    };
    let mut options = vec![("AT", now.as_micros())];
    options.extend(number.map(|(name, number)| (name, number.into())));
    options.extend(ttl.map(|ttl| ("TTL", as_micros(ttl))));
    let options: Vec<_> = options.iter().map(|(name, value)| (name, value.to_string())).collect();
    let policy = policy.to_string();
    let mut command: Vec<&[u8]> = vec![name.as_bytes(), key, policy.as_bytes(), operation.id()];
    for (name, value) in &options {
        command.extend([name.as_bytes(), value.as_bytes()]);
    }
    let reply = integers(&call(&command)?);
    Ok(Decision::from_integers(&reply).unwrap_or_else(|| panic!("not a decision: {reply:?}")))
}

/// Takes from several keys by `SG.TAKEALL`, or holds: under an id and a lifetime. `call` sends a command and returns the reply,
/// or the error without its code; `arrays` converts a reply.
///
/// # Errors
/// The error reply.
///
/// # Panics
/// If the arrays are not decisions.
pub fn apply_all_over_the_wire<V>(
    hold: Option<(&[u8], Option<Duration>)>,
    takes: &[MultiKeyTake],
    now: Timestamp,
    mut call: impl FnMut(&[&[u8]]) -> Result<V, String>,
    arrays: impl FnOnce(&V) -> Vec<Vec<i64>>,
) -> Result<MultiKeyDecision, String> {
    let mut words = vec![b"SG.TAKEALL".to_vec(), takes.len().to_string().into_bytes()];
    for (key, policy, cost) in takes {
        words.extend([key.clone(), policy.to_string().into_bytes(), cost.to_string().into_bytes()]);
    }
    words.extend([b"AT".to_vec(), now.as_micros().to_string().into_bytes()]);
    if let Some((id, ttl)) = hold {
        words.extend([b"ID".to_vec(), id.to_vec()]);
        let ttl = ttl.map(|ttl| [b"TTL".to_vec(), as_micros(ttl).to_string().into_bytes()]);
        words.extend(ttl.into_iter().flatten());
    }
    let mut parts = arrays(&call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())?);
    let mut all = parts.remove(0);
    let key = all.pop().and_then(|key| usize::try_from(key).ok()).expect("the binding key");
    let decision = |reply: &Vec<i64>| {
        Decision::from_integers(reply).unwrap_or_else(|| panic!("not a decision: {reply:?}"))
    };
    Ok(MultiKeyDecision {
        decision: decision(&all),
        key,
        each: parts.iter().map(decision).collect(),
    })
}
