//! An invocation as a command, and the answer from its reply.

use sluicegate_core::{Decision, HoldOperation, Operation, as_micros};

use crate::{Answer, HoldInvocation, Invocation};

/// Applies an invocation to a server that supports the `SG.*` commands with `AT`. `ask` sends a command and returns
/// its reply; `integers` returns the integers of a decision.
///
/// # Errors
/// Those of `ask`.
///
/// # Panics
/// If the integers are not a decision.
pub fn ask_over_the_wire<V>(
    invocation: Invocation<'_>,
    mut ask: impl FnMut(&[&[u8]]) -> Result<V, String>,
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
            ask(&[b"SG.RESET", key, b"AT", at.as_bytes()])?;
            ("SG.PEEK", 0)
        }
    };
    let (policy, cost) = (policy.to_string(), cost.to_string());
    let mut command: Vec<&[u8]> = vec![name.as_bytes(), key, policy.as_bytes()];
    command.extend([b"AT".as_slice(), at.as_bytes(), b"COST", cost.as_bytes()]);
    if !max_wait.is_empty() {
        command.extend([b"MAXWAIT".as_slice(), max_wait.as_bytes()]);
    }
    let reply = integers(&ask(&command)?);
    Ok(Decision::from_integers(&reply).unwrap_or_else(|| panic!("not a decision: {reply:?}")))
}

/// Applies an operation to a hold of a server that supports the `SG.*` commands with `AT`, as [`ask_over_the_wire`].
///
/// # Errors
/// Those of `ask`.
///
/// # Panics
/// If the integers are not a decision.
pub fn ask_hold_over_the_wire<V>(
    invocation: HoldInvocation<'_>,
    mut ask: impl FnMut(&[&[u8]]) -> Result<V, String>,
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
    let reply = integers(&ask(&command)?);
    Ok(Decision::from_integers(&reply).unwrap_or_else(|| panic!("not a decision: {reply:?}")))
}
