//! Points in time as a request has them, and as the server wants to know when a key ends.

use sluicegate_core::Timestamp;

/// The shortest life of a key that was decided at a time which the request told, in milliseconds:
/// that time need not be the server's.
const TEST_LIFE: u64 = 3_600_000;

/// When a request is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Timestamp,
    /// The server's time, where it is another (`AT`).
    wall: Option<Timestamp>,
}

impl Moment {
    /// At the time that the request tells, if it does.
    pub(crate) fn new(server: Timestamp, told: Option<Timestamp>) -> Self {
        match told {
            None => Self { now: server, wall: None },
            Some(now) => Self { now, wall: Some(server) },
        }
    }

    /// Milliseconds since the Unix epoch at which a key may be forgotten that must be kept for so
    /// many microseconds. Rounded up.
    #[inline]
    pub(crate) fn end_after(self, micros: u64) -> i64 {
        let millis = match self.wall {
            None => (self.now.as_micros() + micros).div_ceil(1000),
            Some(wall) => wall.as_micros().div_ceil(1000) + micros.div_ceil(1000).max(TEST_LIFE),
        };
        i64::try_from(millis).unwrap_or(i64::MAX)
    }

    /// Whether a key that is only ever denied is to be looked after: now and then, since that costs
    /// a look-up of its own.
    pub(crate) const fn is_time_to_look(self) -> bool {
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
