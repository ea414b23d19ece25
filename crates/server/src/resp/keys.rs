//! Generic commands on the keys of limiters, for operators.

use std::time::Duration;

use sluicegate_resp::Writer;

use super::session::Session;
use crate::shared::Shared;

/// `DBSIZE`.
pub(super) fn count(shared: &Shared, writer: &mut Writer<'_>) {
    writer.integer(i64::try_from(shared.store.len()).unwrap_or(i64::MAX));
}

/// `EXISTS key [key ...]`.
pub(super) fn exists(session: &Session<'_>, keys: &[&[u8]], writer: &mut Writer<'_>) {
    let there = keys.iter().filter(|key| !lifetime(session, key).is_zero()).count();
    writer.integer(i64::try_from(there).unwrap_or(i64::MAX));
}

/// `DEL key [key ...]`.
pub(super) fn delete(session: &Session<'_>, keys: &[&[u8]], writer: &mut Writer<'_>) {
    let mut deleted = 0;
    for key in keys {
        deleted += i64::from(session.shared.store.reset(key, session.now));
        session.shared.lines.changed(key);
    }
    writer.integer(deleted);
}

/// `TTL key` and `PTTL key`: until the key is forgotten, in units of so many microseconds, rounded
/// up. -2: it does not exist.
pub(super) fn time_to_live(session: &Session<'_>, key: &[u8], unit: u128, writer: &mut Writer<'_>) {
    let left = lifetime(session, key);
    if left.is_zero() {
        writer.integer(-2);
    } else {
        writer.integer(i64::try_from(left.as_micros().div_ceil(unit)).unwrap_or(i64::MAX));
    }
}

/// How long the key is still kept; zero if it is not.
fn lifetime(session: &Session<'_>, key: &[u8]) -> Duration {
    let lifetime = session.shared.store.with_entry(key, |entry| entry.lifetime(session.now));
    lifetime.unwrap_or_default()
}
