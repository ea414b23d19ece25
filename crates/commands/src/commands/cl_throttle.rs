//! `CL.THROTTLE key max_burst count period [quantity]`: the arguments and the reply of redis-cell.
//!
//! The policy is `gcra:count/period s:burst=max_burst+1`. Unlike the original, values out of range are
//! errors, and so is an empty key, a quantity of 0 takes nothing, and seconds are rounded up, so that a client that waits
//! `retry_after` is allowed.

use sluicegate_core::Operation;

use crate::{
    CommandError, DecisionFormat, PolicyText,
    arguments::{KeyArgument, units},
    command::{Action, Command, Host, Parsed},
    spec::{Argument, ArgumentKind, CommandSpec, KEY, ONE_KEY},
};

/// `CL.THROTTLE`.
pub(crate) struct ClThrottle;

impl Command for ClThrottle {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "CL.THROTTLE",
        arity: -5,
        summary: "Takes from a gcra limit, with the arguments and the reply of redis-cell.",
        arguments: &[
            KEY,
            Argument::new("max_burst", ArgumentKind::Integer),
            Argument::new("count", ArgumentKind::Integer),
            Argument::new("period", ArgumentKind::Integer),
            Argument::optional("quantity", ArgumentKind::Integer),
        ],
        ..ONE_KEY
    };

    #[inline]
    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        let (key, max_burst, count, period, quantity) = match *arguments {
            [_, key, max_burst, count, period] => (key, max_burst, count, period, 1),
            [_, key, max_burst, count, period, quantity] => {
                (key, max_burst, count, period, units("quantity", quantity, 0)?)
            }
            _ => return Err(CommandError::Arity(Self::SPEC)),
        };
        let key = KeyArgument::new(key, 1)?;
        let policy = host.policy(PolicyText::Throttle { max_burst, count, period })?;
        let operation = if quantity == 0 { Operation::Peek(0) } else { Operation::Take(quantity) };
        Ok(Action::Apply { key, policy, operation, at: None, format: DecisionFormat::RedisCell })
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Entry, Timestamp, apply};

    use super::*;
    use crate::{HostOptions, parse};

    fn throttle(entry: &mut Option<Entry>, now: u64, arguments: &str) -> [i64; 5] {
        let line = format!("CL.THROTTLE user123 {arguments}");
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let Ok(Action::Apply { policy, operation, format, .. }) =
            parse(&arguments, HostOptions::default())
        else {
            panic!("{line}");
        };
        let now = Timestamp::from_micros(now).unwrap();
        let decision = apply(&policy, entry, now, operation).unwrap();
        let mut integers = Vec::new();
        format.write(&decision, &mut integers);
        integers.try_into().unwrap()
    }

    #[test]
    fn throttle_every_outcome_returns_five_integers() {
        let entry = &mut None;
        assert_eq!(throttle(entry, 0, "15 30 60"), [0, 16, 15, -1, 2]);
        assert_eq!(throttle(entry, 0, "15 30 60 0"), [0, 16, 15, -1, 2], "a peek");
        assert_eq!(throttle(entry, 0, "15 30 60 15"), [0, 16, 0, -1, 32]);
        assert_eq!(throttle(entry, 0, "15 30 60"), [1, 16, 0, 2, 32]);
        assert_eq!(throttle(entry, 1, "15 30 60"), [1, 16, 0, 2, 32], "1 999 999 us is 2 s");
        assert_eq!(throttle(entry, 0, "15 30 60 17"), [1, 16, 0, -1, 32], "never");
        assert_eq!(throttle(entry, 2_000_000, "15 30 60"), [0, 16, 0, -1, 32]);
    }

    #[test]
    fn throttle_max_burst_zero_paces() {
        let entry = &mut None;
        assert_eq!(throttle(entry, 0, "0 1 1"), [0, 1, 0, -1, 1]);
        assert_eq!(throttle(entry, 1, "0 1 1"), [1, 1, 0, 1, 1]);
        assert_eq!(throttle(entry, 1_000_000, "0 1 1"), [0, 1, 0, -1, 1]);
    }

    #[test]
    fn throttle_rate_above_1000_per_second_is_exact() {
        let entry = &mut None;
        assert_eq!(throttle(entry, 0, "5999 6000 1 6000"), [0, 6000, 0, -1, 1]);
        assert_eq!(throttle(entry, 0, "5999 6000 1"), [1, 6000, 0, 1, 1]);
        assert_eq!(throttle(entry, 500_000, "5999 6000 1"), [0, 6000, 2999, -1, 1]);
    }
}
