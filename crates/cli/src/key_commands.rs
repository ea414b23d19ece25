//! `take`, `peek`, `reset` and `info`: one command to a server.

use std::{io::Write, process::ExitCode};

use anyhow::bail;
use sluicegate_core::{
    Decision, Outcome, Policy, PolicyError, Retry,
    human::{span, units},
};
use sluicegate_resp::Value;

use crate::{
    arguments::{Key, KeyArguments},
    client::{Client, decision},
    output::{DENIED, output},
    table::duration_text,
};

pub(crate) fn take(arguments: &KeyArguments) -> anyhow::Result<ExitCode> {
    decide(b"SG.TAKE", arguments)
}

pub(crate) fn peek(arguments: &KeyArguments) -> anyhow::Result<ExitCode> {
    decide(b"SG.PEEK", arguments)
}

fn decide(command: &[u8], arguments: &KeyArguments) -> anyhow::Result<ExitCode> {
    check_policy(arguments)?;
    let mut client = Client::connect(&arguments.connection.server, &arguments.connection.password)?;
    let key = arguments.key.as_encoded_bytes();
    let (policy, cost) = (&arguments.policy, arguments.cost.to_string());
    let reply = client.call(&[command, key, policy.as_bytes(), b"COST", cost.as_bytes()])?;
    let decision = decision(&reply)?;
    writeln!(output(), "{}", sentence(&decision, arguments.cost))?;
    Ok(if decision.allowed() { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
}

/// Checks a policy before it is sent; only the server knows those with a name.
fn check_policy(arguments: &KeyArguments) -> anyhow::Result<()> {
    let KeyArguments { key, policy, .. } = arguments;
    let Some(error) = policy.parse::<Policy>().err().filter(|_| !policy.starts_with('@')) else {
        return Ok(());
    };
    let swapped = key.to_str().filter(|key| key.parse::<Policy>().is_ok());
    Err(swapped.map_or(error, |key| PolicyError::swapped(key, policy)).into())
}

pub(crate) fn reset(key: &Key) -> anyhow::Result<()> {
    let mut client = Client::connect(&key.connection.server, &key.connection.password)?;
    let result = match client.call(&[b"SG.RESET", key.key.as_encoded_bytes()])? {
        Value::Integer(0) => "the key has no state",
        _ => "reset",
    };
    Ok(writeln!(output(), "{result}")?)
}

pub(crate) fn info(key: &Key) -> anyhow::Result<()> {
    let mut client = Client::connect(&key.connection.server, &key.connection.password)?;
    let reply = client.call(&[b"SG.INFO", key.key.as_encoded_bytes()])?;
    let mut out = String::new();
    match &reply {
        Value::Null => out.push_str("the key has no state\n"),
        reply => show(reply, 0, &mut out)?,
    }
    Ok(output().write_all(out.as_bytes())?)
}

/// Describes a decision in one sentence.
fn sentence(decision: &Decision, cost: u32) -> String {
    let outcome = match decision.outcome {
        Outcome::Allow { delay } if delay.is_zero() => "allowed".to_owned(),
        Outcome::Allow { delay } => format!("allowed after a delay of {}", duration_text(delay)),
        Outcome::Deny { retry: Retry::After(wait) } => {
            format!("denied; retry after {}", duration_text(wait))
        }
        Outcome::Deny { retry: Retry::Never } => {
            format!("denied: {} can never pass a limit of {}", units(cost.into()), decision.limit)
        }
    };
    let left = format!("{} of {} remaining", decision.remaining, decision.limit);
    if decision.reset_after.is_zero() {
        format!("{outcome}; {left}")
    } else {
        format!("{outcome}; {left}; fully recovered after {}", duration_text(decision.reset_after))
    }
}

/// Writes the pairs of a map, or of an array instead of a map in RESP2, one per line.
fn show(reply: &Value, depth: usize, out: &mut String) -> anyhow::Result<()> {
    let pairs: Vec<(&Value, &Value)> = match reply {
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
        Value::Array(values) => values.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        _ => bail!("invalid reply of the server: expected a description of a key"),
    };
    let indent = "  ".repeat(depth);
    for (name, value) in pairs {
        let name = text(name);
        match value {
            Value::Integer(number) => match (name.strip_suffix("_us"), u64::try_from(*number)) {
                (Some(name), Ok(micros)) => {
                    out.push_str(&format!("{indent}{name:<13} {}\n", span(micros)));
                }
                _ => out.push_str(&format!("{indent}{name:<13} {number}\n")),
            },
            Value::Array(parts) if name == "limits" => {
                for part in parts {
                    out.push('\n');
                    show(part, depth + 1, out)?;
                }
            }
            value => out.push_str(&format!("{indent}{name:<13} {}\n", text(value))),
        }
    }
    Ok(())
}

fn text(value: &Value) -> String {
    match value {
        Value::Bulk(text) | Value::Simple(text) => String::from_utf8_lossy(text).into_owned(),
        value => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Policy, Timestamp, apply};

    use super::*;

    #[test]
    fn sentence_describes_each_outcome() {
        let described = |policy: &str, takes: &[u32]| {
            let policy: Policy = policy.parse().unwrap();
            let (mut entry, mut described) = (None, String::new());
            for cost in takes {
                let operation = Operation::Take(*cost);
                let decision = apply(&policy, &mut entry, Timestamp::EPOCH, operation).unwrap();
                described = sentence(&decision, *cost);
            }
            described
        };
        let gcra = "gcra:30/60s:burst=16";
        assert_eq!(described(gcra, &[2]), "allowed; 14 of 16 remaining; fully recovered after 4s");
        assert_eq!(
            described(gcra, &[16, 1]),
            "denied; retry after 2s; 0 of 16 remaining; fully recovered after 32s"
        );
        assert_eq!(
            described(gcra, &[17]),
            "denied: 17 units can never pass a limit of 16; 16 of 16 remaining"
        );
        assert_eq!(described(gcra, &[0]), "allowed; 16 of 16 remaining");
        assert_eq!(
            described("leaky-queue:5/1s:capacity=20", &[1, 1]),
            "allowed after a delay of 200ms; 18 of 20 remaining; fully recovered after 400ms"
        );
    }
}
