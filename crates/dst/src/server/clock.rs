//! The clock of the server, and the turns of its connections. The clock stands still between two milliseconds of virtual time, so
//! that the time of each decision is known.

use std::cell::Cell;

use sluicegate_core::Timestamp;
use tokio::time::Instant;

use crate::{random::Random, time::start_of_clock};

#[derive(Clone, Copy, Debug)]
struct Clock {
    began: Instant,
    /// Its first reading, in microseconds.
    start: u64,
    /// How much faster it runs, in parts per million.
    drift: i64,
}

thread_local! {
    static CLOCK: Cell<Option<Clock>> = const { Cell::new(None) };
}

/// Starts the clock of this run.
pub(super) fn start_clock(random: &Random) {
    let start = start_of_clock(random);
    let drift = random.below(401).cast_signed() - 200;
    CLOCK.set(Some(Clock { began: Instant::now(), start, drift }));
}

/// The reading of the clock.
pub(super) fn now() -> Timestamp {
    let Some(Clock { began, start, drift }) = CLOCK.get() else { return Timestamp::EPOCH };
    let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let part = millis.cast_signed() * drift / 1000;
    Timestamp::saturating_from_micros((start + millis * 1000).saturating_add_signed(part))
}

/// Milliseconds since the start of this run.
pub(super) fn millis() -> u64 {
    let elapsed = CLOCK.get().map_or(0, |it| it.began.elapsed().as_millis());
    u64::try_from(elapsed).unwrap_or(u64::MAX)
}

// Bytes that the running connection has read in its turn, which ends when others run.

thread_local! {
    static READ: Cell<usize> = const { Cell::new(0) };
}

/// A task begins to run. Every connection is a task.
pub(super) fn begin_turn() {
    READ.set(0);
}

/// The task that runs reads bytes. Returns how many it has read in its turn.
pub(super) fn read_in_turn(bytes: usize) -> usize {
    // Turns are unknown if tokio does not report them.
    if !cfg!(tokio_unstable) {
        return 0;
    }
    READ.set(READ.get() + bytes);
    READ.get()
}
