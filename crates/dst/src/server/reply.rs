//! Replies of the server by any protocol, and by RESP.

use sluicegate_core::Decision;
use sluicegate_resp::Value;

/// The integers of a decision, in the order of RESP.
pub(crate) type Integers = [i64; 7];

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Decision(Integers),
    /// The decision on several keys, the index of the one that binds, and the decision on each.
    MultiKey {
        decision: Integers,
        key: i64,
        each: Vec<Integers>,
    },
    Reset,
    Error(String),
    /// A reply that no command may get.
    Other(String),
}

impl Reply {
    /// Whether it allows something.
    pub(crate) const fn is_allowed(&self) -> bool {
        matches!(self, Self::Decision([1, ..]) | Self::MultiKey { decision: [1, ..], .. })
    }

    pub(crate) const fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Whether it is this decision, or both are errors.
    pub(crate) fn agrees(&self, expected: &Result<Decision, String>) -> bool {
        match (self, expected) {
            (Self::Error(_), Err(_)) => true,
            (Self::Decision(integers), Ok(expected)) => *integers == expected.to_integers(),
            _ => false,
        }
    }
}

/// The reply that a value of RESP is.
pub(crate) fn of_value(value: &Value) -> Reply {
    let other = || Reply::Other(format!("{value:?}"));
    match value {
        Value::Integer(0 | 1) => Reply::Reset,
        Value::Error(text) => Reply::Error(String::from_utf8_lossy(text).into_owned()),
        Value::Array(values) => {
            if let Some(integers) = integers(value, 0..7) {
                return if values.len() == 7 { Reply::Decision(integers) } else { other() };
            }
            let multi_key = || {
                let first @ Value::Array(members) = values.first()? else { return None };
                let decision = integers(first, 0..7)?;
                let Value::Integer(key) = *members.get(7)? else { return None };
                let each = values.iter().skip(1).map(|it| integers(it, 0..7));
                Some(Reply::MultiKey { decision, key, each: each.collect::<Option<_>>()? })
            };
            multi_key().unwrap_or_else(other)
        }
        _ => other(),
    }
}

/// The integers at these places of an array.
fn integers(value: &Value, places: std::ops::Range<usize>) -> Option<Integers> {
    let Value::Array(values) = value else { return None };
    let integers = values.get(places)?.iter().map(|it| match it {
        Value::Integer(it) => Some(*it),
        _ => None,
    });
    integers.collect::<Option<Vec<_>>>()?.try_into().ok()
}
