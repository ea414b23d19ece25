//! The time of a decision, and the expiry of a key in the unit of the server.

use sluicegate_core::Timestamp;

/// Lower bound on the time to live of a key that was decided at a time set by the command (`AT`), in milliseconds:
/// that time is not the server's.
const MIN_TEST_LIFE: u64 = 3_600_000;

/// The time of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Timestamp,
    /// The server's time, if the command sets another (`AT`).
    server: Option<Timestamp>,
}

impl Moment {
    /// The time of the server, unless the command sets another.
    pub(crate) fn new(server: Timestamp, at: Option<Timestamp>) -> Self {
        match at {
            None => Self { now: server, server: None },
            Some(now) => Self { now, server: Some(server) },
        }
    }

    /// Whether the command sets the time.
    pub(crate) const fn is_test(self) -> bool {
        self.server.is_some()
    }

    /// Expiry of a key that is kept for `micros` microseconds, in milliseconds since the Unix epoch, rounded up.
    #[inline]
    pub(crate) fn end_after(self, micros: u64) -> i64 {
        let millis = match self.server {
            None => (self.now.as_micros() + micros).div_ceil(1000),
            Some(server) => {
                server.as_micros().div_ceil(1000) + micros.div_ceil(1000).max(MIN_TEST_LIFE)
            }
        };
        i64::try_from(millis).unwrap_or(i64::MAX)
    }

    /// Whether to check the expiry of a key after a denial: only sometimes, because that costs a look-up.
    pub(crate) const fn is_time_to_check_expiry(self) -> bool {
        self.now.as_micros().is_multiple_of(16)
    }
}

/// A number of up to eight bytes, little-endian.
#[inline]
pub(crate) fn read(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}
