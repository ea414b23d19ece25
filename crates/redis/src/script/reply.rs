//! Replies of scripts.

use redis::Value;
use sluicegate_core::{Decision, Timestamp};
use smallvec::SmallVec;

use super::calendar::Calendar;

/// The reply of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A decision.
    Decision(Decision),
    /// Not applied, because the script needs the windows of calendars around the time of the
    /// server as arguments of the next call.
    Calendars {
        /// The server's time.
        now: Timestamp,
        /// All calendars that may be needed.
        calendars: Vec<Calendar>,
    },
}

/// A reply that no script returns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the script's reply cannot be read: {0}")]
pub struct ReplyError(pub(super) String);

impl Reply {
    /// Parses the elements of an array.
    ///
    /// # Errors
    /// [`ReplyError`] for anything else, and for a calendar of an unknown zone.
    pub fn read(elements: &[Value]) -> Result<Self, ReplyError> {
        let wrong = || ReplyError(format!("{elements:?}"));
        let integers = elements.iter().map(|element| match element {
            Value::Int(integer) => Some(*integer),
            _ => None,
        });
        if let Some(integers) = integers.collect::<Option<SmallVec<[_; 8]>>>() {
            return Decision::from_integers(&integers).map(Self::Decision).ok_or_else(wrong);
        }
        let [Value::Int(now), names @ ..] = elements else { return Err(wrong()) };
        let now = u64::try_from(*now).ok().and_then(|now| Timestamp::from_micros(now).ok());
        let calendars = names.iter().map(|name| match name {
            Value::BulkString(name) => Calendar::named(name),
            _ => None,
        });
        match (now, calendars.collect()) {
            (Some(now), Some(calendars)) => Ok(Self::Calendars { now, calendars }),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integers(list: &[i64]) -> Vec<Value> {
        list.iter().map(|&integer| Value::Int(integer)).collect()
    }

    fn bytes(bytes: &[u8]) -> Value {
        Value::BulkString(bytes.to_vec())
    }

    #[test]
    fn reply_of_a_decision_reads_back_as_it_was() {
        for actual in [[1, 16, 15, 0, 2_000_000, 7, 0], [0, 9, 0, -1, 1 << 50, 0, 2], [0; 7]] {
            let Ok(Reply::Decision(decision)) = Reply::read(&integers(&actual)) else { panic!() };
            assert_eq!(decision.to_integers(), actual);
        }
    }

    #[test]
    fn reply_of_no_script_is_an_error() {
        for wrong in [
            &[1, 2, 3][..],
            &[2, 1, 1, 0, 0, 0, 0],
            &[1, 1, 1, 5, 0, 0, 0],
            &[0, 1, 1, -2, 0, 0, 0],
            &[1, -1, 1, 0, 0, 0, 0],
            &[1, 1, 1, 0, 0, 0, 0, 0],
            &[],
        ] {
            assert!(Reply::read(&integers(wrong)).is_err(), "{wrong:?}");
        }
        let zone = [Value::Int(5), bytes(b"\0\x04Mars")];
        assert!(Reply::read(&zone).unwrap_err().to_string().contains("Mars"));
        assert!(Reply::read(&[bytes(b"x")]).is_err());
    }

    #[test]
    fn reply_with_names_requests_calendars() {
        let reply = Reply::read(&[Value::Int(5), bytes(b"\0\x03UTC")]).unwrap();
        let Reply::Calendars { now, calendars } = reply else { panic!() };
        assert_eq!((now.as_micros(), calendars.len()), (5, 1));
    }
}
