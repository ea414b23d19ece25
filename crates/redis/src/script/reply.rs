//! Replies of scripts.

use sluicegate_core::{Decision, Timestamp};
use smallvec::SmallVec;

use super::calendar::Calendar;

/// One element of the reply of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// An integer.
    Integer(i64),
    /// A byte string.
    Bytes(&'a [u8]),
}

/// The reply of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A decision.
    Decision(Decision),
    /// Not applied, because the script needs the windows of calendars around the time of the
    /// server: [`Plan::arguments_again`](super::Plan::arguments_again).
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
    pub fn read(items: &[Item<'_>]) -> Result<Self, ReplyError> {
        let wrong = || ReplyError(format!("{items:?}"));
        let integers = items.iter().map(|item| match item {
            Item::Integer(integer) => Some(*integer),
            Item::Bytes(_) => None,
        });
        if let Some(integers) = integers.collect::<Option<SmallVec<[_; 8]>>>() {
            return Decision::from_integers(&integers).map(Self::Decision).ok_or_else(wrong);
        }
        let [Item::Integer(now), names @ ..] = items else { return Err(wrong()) };
        let now = u64::try_from(*now).ok().and_then(|now| Timestamp::from_micros(now).ok());
        let calendars = names.iter().map(|name| match name {
            Item::Bytes(name) => Calendar::named(name),
            Item::Integer(_) => None,
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

    fn integers(list: &[i64]) -> Vec<Item<'static>> {
        list.iter().map(|&integer| Item::Integer(integer)).collect()
    }

    #[test]
    fn decisions_read_back_as_they_were_told() {
        for told in [[1, 16, 15, 0, 2_000_000, 7, 0], [0, 9, 0, -1, 1 << 50, 0, 2], [0; 7]] {
            let Ok(Reply::Decision(decision)) = Reply::read(&integers(&told)) else { panic!() };
            assert_eq!(decision.to_integers(), told);
        }
    }

    #[test]
    fn what_no_script_answers_is_an_error() {
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
        let zone = [Item::Integer(5), Item::Bytes(b"\0\x04Mars")];
        assert!(Reply::read(&zone).unwrap_err().to_string().contains("77, 97, 114, 115"));
        assert!(Reply::read(&[Item::Bytes(b"x")]).is_err());
    }

    #[test]
    fn calendars_are_asked_for_by_name() {
        let reply = Reply::read(&[Item::Integer(5), Item::Bytes(b"\0\x03UTC")]).unwrap();
        let Reply::Calendars { now, calendars } = reply else { panic!() };
        assert_eq!((now.as_micros(), calendars.len()), (5, 1));
    }
}
