//! An invocation as a command, and the answer from its reply.

use sluicegate_core::{Answer as AnswerOfAll, Decision, Operation, Source, as_micros};

use crate::{Answer, Invocation};

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
    let Invocation { key, policy, now, mut operation } = invocation;
    let at = now.as_micros().to_string();
    if operation == Operation::Reset {
        call(&[b"SG.RESET", key, b"AT", at.as_bytes()])?;
        operation = Operation::Peek(0);
    }
    let (name, options) = command_of(operation);
    let options = options.into_iter().flatten().map(|(name, value)| (name, value.to_string()));
    let (policy, options) = (policy.to_string(), options.collect::<Vec<_>>());
    let mut command: Vec<&[u8]> = vec![name.as_bytes(), key, policy.as_bytes()];
    command.extend(operation.id());
    command.extend([b"AT".as_slice(), at.as_bytes()]);
    for (name, value) in &options {
        command.extend([name.as_bytes(), value.as_bytes()]);
    }
    Ok(decision(&integers(&call(&command)?)))
}

/// The name of the command of an operation, and its options with their values.
fn command_of(operation: Operation<'_>) -> (&'static str, [Option<(&'static str, u64)>; 2]) {
    let cost = Some(("COST", u64::from(operation.cost())));
    let ttl = |ttl: Option<_>| ttl.map(|ttl| ("TTL", as_micros(ttl)));
    match operation {
        Operation::Take(_) => ("SG.TAKE", [cost, None]),
        Operation::Peek(_) => ("SG.PEEK", [cost, None]),
        Operation::Charge(_) => ("SG.CHARGE", [cost, None]),
        Operation::Refund(_) => ("SG.REFUND", [cost, None]),
        // No debt is longer; therefore a longer wait has the same effect as the maximum of the command.
        Operation::Reserve { max_wait, .. } => {
            ("SG.RESERVE", [cost, Some(("MAXWAIT", as_micros(max_wait).min(1 << 50)))])
        }
        Operation::Reset => ("SG.RESET", [None, None]),
        Operation::Hold { ttl: span, .. } => ("SG.HOLD", [cost, ttl(span)]),
        Operation::Settle { used, .. } => {
            ("SG.SETTLE", [used.map(|used| ("USED", used.into())), None])
        }
        Operation::Renew { ttl: span, .. } => ("SG.RENEW", [None, ttl(span)]),
    }
}

/// Applies takes of several keys, or holds, by `SG.TAKEALL`. `call` sends a command and returns the reply, or the error
/// without its code; `arrays` converts a reply.
///
/// # Errors
/// The error reply.
///
/// # Panics
/// If the invocations are neither takes nor holds, or the arrays are not those of an [answer](answer_from_integers).
pub fn apply_all_over_the_wire<V>(
    invocations: &[Invocation<'_>],
    mut call: impl FnMut(&[&[u8]]) -> Result<V, String>,
    arrays: impl FnOnce(&V) -> Vec<Vec<i64>>,
) -> Result<AnswerOfAll, String> {
    let first = invocations.first().expect("at least one key");
    let mut words = vec![b"SG.TAKEALL".to_vec(), invocations.len().to_string().into_bytes()];
    for Invocation { key, policy, operation, .. } in invocations {
        words.extend([key.to_vec(), policy.to_string().into_bytes()]);
        words.push(operation.cost().to_string().into_bytes());
    }
    words.extend([b"AT".to_vec(), first.now.as_micros().to_string().into_bytes()]);
    match first.operation {
        Operation::Take(_) => {}
        Operation::Hold { id, ttl, .. } => {
            words.extend([b"ID".to_vec(), id.to_vec()]);
            let ttl = ttl.map(|ttl| [b"TTL".to_vec(), as_micros(ttl).to_string().into_bytes()]);
            words.extend(ttl.into_iter().flatten());
        }
        other => panic!("no operation on several keys: {other:?}"),
    }
    let reply = call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    Ok(answer_from_integers(&arrays(&reply)))
}

/// The answer from the integers of `SG.TAKEALL`: first the decision on all keys with the binding key, then the decision on
/// each.
///
/// # Panics
/// If they are not decisions, or the first is not that of the others.
pub fn answer_from_integers(arrays: &[Vec<i64>]) -> AnswerOfAll {
    let [all, each @ ..] = arrays else { panic!("no decision") };
    let (key, all) = all.split_last().expect("the binding key");
    let each = each.iter().map(|integers| decision(integers)).collect();
    let answer = AnswerOfAll::of_all(each, Source::Store).expect("a decision on each key");
    assert_eq!((i64::try_from(answer.key), answer.decision), (Ok(*key), decision(all)));
    answer
}

fn decision(integers: &[i64]) -> Decision {
    Decision::from_integers(integers).unwrap_or_else(|| panic!("not a decision: {integers:?}"))
}
