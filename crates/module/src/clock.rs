//! The system's clock, for servers that give modules no microseconds. No other file reads it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch; 0 before it.
#[expect(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    sluicegate_core::as_micros(since)
}
