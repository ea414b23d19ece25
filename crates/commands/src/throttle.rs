//! `CL.THROTTLE key max_burst count period [quantity]`: the arguments and the reply of redis-cell.
//!
//! The policy is `gcra:count/period s:burst=max_burst+1`. Unlike the original, values out of range are
//! errors, a quantity of 0 takes nothing, and seconds are rounded up, so that a client that waits
//! `retry_after` is allowed.

use std::time::Duration;

use sluicegate_core::{Decision, Operation, Retry};

use crate::{
    CommandError, PolicyText, Request,
    argument::{any_key, units},
};

/// Parses `arguments`, which start with the name of the command.
#[inline]
pub(crate) fn parse<'a, P>(
    arguments: &[&'a [u8]],
    resolve: impl FnOnce(PolicyText<'a>) -> Result<P, CommandError>,
) -> Result<Request<'a, P>, CommandError> {
    let &[_, key_bytes, max_burst, count, period, ref quantity @ ..] = arguments else {
        return Err(CommandError::arity("cl.throttle"));
    };
    let quantity = match *quantity {
        [] => 1,
        [quantity] => units("quantity", quantity, 0)?,
        [_, _, ..] => return Err(CommandError::arity("cl.throttle")),
    };
    let key = any_key(key_bytes)?;
    let policy = resolve(PolicyText::Throttle { max_burst, count, period })?;
    let operation = if quantity == 0 { Operation::Peek(0) } else { Operation::Take(quantity) };
    Ok(Request::Throttle { key, policy, operation })
}

/// The reply of `CL.THROTTLE`: limited (1 or 0), limit, remaining, retry after in
/// seconds (-1 if allowed, or if it can never pass), reset after in seconds. Seconds are
/// rounded up.
#[must_use]
pub fn throttle_integers(decision: &Decision) -> [i64; 5] {
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
    let whole = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    i64::try_from(whole).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Entry, Timestamp, apply};

    use super::*;

    fn throttle(entry: &mut Option<Entry>, now: u64, arguments: &str) -> [i64; 5] {
        let line = format!("CL.THROTTLE user123 {arguments}");
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let Request::Throttle { policy, operation, .. } =
            parse(&arguments, PolicyText::parse).unwrap()
        else {
            panic!("not a throttle");
        };
        let now = Timestamp::from_micros(now).unwrap();
        throttle_integers(&apply(&policy, entry, now, operation).unwrap())
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
