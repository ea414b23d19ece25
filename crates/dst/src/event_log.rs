//! The events of a run, as a hash and, on demand, as text.

use std::{
    fmt::{self, Write},
    io::{self, Write as _},
};

use parking_lot::Mutex;
use sluicegate_core::Operation;

use crate::time::VirtualTime;

/// The output of events beside their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Nothing,
    Text,
}

/// Operations on keys, as text.
pub(crate) struct Shown<I>(pub(crate) I);

impl<'a, I: Iterator<Item = (&'a [u8], Operation<'a>)> + Clone> fmt::Display for Shown<I> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, operation)) in self.0.clone().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let (name, units) = match operation {
                Operation::Hold { cost, .. } => ("hold", Some(cost)),
                Operation::Settle { used, .. } => ("settle", used),
                _ => ("renew", None),
            };
            match operation.id() {
                None => write!(formatter, "{comma}{operation:?}")?,
                Some(id) => write!(formatter, "{comma}{name} {} {units:?}", id.escape_ascii())?,
            }
            write!(formatter, " of {}", key.escape_ascii())?;
        }
        Ok(())
    }
}

/// The events of a run, in order. Equal runs have equal hashes.
#[derive(Debug)]
pub(crate) struct EventLog {
    time: VirtualTime,
    output: Output,
    state: Mutex<Hash>,
}

/// FNV-1a, over text.
#[derive(Debug)]
struct Hash {
    hash: u64,
    events: u64,
}

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

impl EventLog {
    /// An empty log.
    pub(crate) fn new(time: &VirtualTime, output: Output) -> Self {
        let state = Mutex::new(Hash { hash: 0xcbf2_9ce4_8422_2325, events: 0 });
        Self { time: time.clone(), output, state }
    }

    /// Adds an event.
    pub(crate) fn add(&self, event: fmt::Arguments<'_>) {
        self.add_at(self.time.millis(), event);
    }

    /// Adds an event that happens `millis` milliseconds after the start.
    pub(crate) fn add_at(&self, millis: u64, event: fmt::Arguments<'_>) {
        let mut state = self.state.lock();
        state.events += 1;
        // Writing to a hash cannot fail.
        let _ = writeln!(state, "{millis} {event}");
        if self.output == Output::Text {
            print_line(format_args!("{millis:>7} ms  {event}"));
        }
    }

    /// The hash of all events, and their number.
    pub(crate) fn summary(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.hash, state.events)
    }
}

/// Prints a line. A reader that closes the output early, as `head` does, loses the rest.
pub(crate) fn print_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunOutcome {
    /// The hash of all events, and their number.
    pub(crate) hash: u64,
    pub(crate) events: u64,
    /// Its duration, in milliseconds of virtual time.
    pub(crate) millis: u64,
    /// The violated property.
    pub(crate) violation: Option<String>,
}

impl RunOutcome {
    pub(crate) fn new(log: &EventLog, millis: u64, violation: Option<String>) -> Self {
        let (hash, events) = log.summary();
        Self { hash, events, millis, violation }
    }
}
