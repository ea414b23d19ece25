//! Arguments of scripts after the key.

use std::borrow::Cow;

use sluicegate_core::{Operation, Timestamp, as_micros};

/// The greatest integer that Lua represents exactly.
const MAX_LUA_INTEGER: u64 = 1 << 53;

/// The arguments of one script call, in the order of `lua/main.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments<'a>(Vec<Cow<'a, [u8]>>);

impl<'a> Arguments<'a> {
    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// A take on the fast path of a script: `request` begins with four bytes for the cost.
    pub(super) fn fast(request: &[u8], cost: u32, at: Option<Timestamp>) -> Self {
        let mut request = request.to_vec();
        request[..4].copy_from_slice(&cost.to_le_bytes());
        let mut list = vec![request.into()];
        list.extend(at.map(|at| digits(at.as_micros())));
        Self(list)
    }

    /// Any operation under any policy; `ttl` is the lifetime of a hold in microseconds.
    pub(super) fn general(
        operation: Operation<'a>,
        policy: &'a [u8],
        ttl: u64,
        calendars: Vec<u8>,
        at: Option<Timestamp>,
    ) -> Self {
        let word: &[u8] = match operation {
            Operation::Take(_) => b"take",
            Operation::Peek(_) => b"peek",
            Operation::Charge(_) => b"charge",
            Operation::Refund(_) => b"refund",
            Operation::Reserve { .. } => b"reserve",
            Operation::Reset => b"reset",
            Operation::Hold { .. } => b"hold",
            Operation::Settle { .. } => b"settle",
            Operation::Renew { .. } => b"renew",
        };
        let cost = match operation {
            Operation::Settle { used, .. } => used.map(u64::from).map_or_else(Cow::default, digits),
            Operation::Renew { .. } => Cow::default(),
            _ => digits(operation.cost().into()),
        };
        let span = match operation {
            Operation::Reserve { max_wait, .. } => digits(as_micros(max_wait).min(MAX_LUA_INTEGER)),
            _ if operation.id().is_some() => digits(ttl),
            _ => Cow::default(),
        };
        let mut list = vec![word.into(), cost, policy.into(), span, calendars.into()];
        list.push(at.map_or_else(Cow::default, |at| digits(at.as_micros())));
        list.push(operation.id().unwrap_or_default().into());
        // Empty arguments at the end are not sent.
        while list.last().is_some_and(|last| last.is_empty()) {
            list.pop();
        }
        Self(list)
    }
}

fn digits(number: u64) -> Cow<'static, [u8]> {
    number.to_string().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shown(arguments: &Arguments<'_>) -> Vec<String> {
        arguments.iter().map(|argument| argument.escape_ascii().to_string()).collect()
    }

    #[test]
    fn general_empty_arguments_at_the_end_are_not_sent() {
        let at = Some(Timestamp::EPOCH);
        for (operation, calendars, at, expected) in [
            (Operation::Take(3), "", None, &["take", "3", "policy"][..]),
            (Operation::Reset, "", None, &["reset", "0", "policy"]),
            (Operation::Peek(0), "days", None, &["peek", "0", "policy", "", "days"]),
            (Operation::Charge(u32::MAX), "", at, &["charge", "4294967295", "policy", "", "", "0"]),
            (
                Operation::Reserve { cost: 1, max_wait: Duration::MAX },
                "",
                None,
                &["reserve", "1", "policy", "9007199254740992"],
            ),
        ] {
            let calendars = calendars.as_bytes().to_vec();
            assert_eq!(
                shown(&Arguments::general(operation, b"policy", 0, calendars, at)),
                expected
            );
        }
    }

    #[test]
    fn fast_argument_begins_with_the_cost() {
        let arguments = Arguments::fast(&[7; 36], 258, None);
        assert_eq!(arguments.iter().next().unwrap()[..5], [2, 1, 0, 0, 7]);
        assert_eq!(arguments.iter().len(), 1);
    }
}
