//! Reads a log block by block.

use std::{
    io::{self, Read},
    time::Duration,
};

use memchr::{memchr, memrchr};
use sluicegate_core::{Timestamp, as_micros};

use super::{
    error::{LogError, LogFault},
    fields::KeyTemplate,
    shape::{LogFormat, Shape},
};
use crate::{
    batch::{Batch, Stored},
    event::Kind,
    limits::MAX_LINE,
};

/// Bytes read at a time.
const BLOCK: usize = 2 * MAX_LINE;
/// Most events that wait for others which may belong before them.
const MOST_WAITING: usize = 65_536;
/// Broken lines that are told one by one.
const TOLD: usize = 5;

/// Lines that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// How many.
    pub count: u64,
    /// The first few, each with its number (counted from 1) and what is wrong with it.
    pub first: Vec<(u64, LogFault)>,
}

/// Lines that came too late to be put in order, and were taken later than they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// How many.
    pub count: u64,
    /// The most that any was moved.
    pub most: Duration,
}

/// Reads an access log, some thousand events at a time, each a take of cost 1.
#[derive(Debug)]
pub struct LogReader<R> {
    source: R,
    shape: Shape,
    /// What was read; the first `filled` bytes are lines, the last of them perhaps not whole.
    buffer: Vec<u8>,
    filled: usize,
    ended: bool,
    /// The line being read is too long, and skipped to its end.
    skipping: bool,
    /// Lines behind us.
    lines: u64,
    events: Vec<Stored>,
    /// The keys of the events, one behind the other.
    keys: Vec<u8>,
    /// How many events were handed out.
    handed: usize,
    /// The latest time seen, and the time reached by what was handed out.
    latest: Timestamp,
    reached: Timestamp,
    disorder: Duration,
    broken: Broken,
    late: Late,
    /// Lines that are events.
    read: u64,
}

impl<R: Read> LogReader<R> {
    /// Reads lines of `format`; `key` is made of their fields, and the time is in `time_field` if
    /// that is given. Lines within `disorder` of each other are put in order.
    ///
    /// # Errors
    /// [`LogError`] for a field that the format has not.
    pub fn new(
        source: R,
        format: &LogFormat,
        key: &KeyTemplate,
        time_field: Option<&str>,
        disorder: Duration,
    ) -> Result<Self, LogError> {
        let shape = Shape::new(format, key, time_field)?;
        Ok(Self {
            source,
            shape,
            buffer: vec![0; BLOCK],
            filled: 0,
            ended: false,
            skipping: false,
            lines: 0,
            events: Vec::new(),
            keys: Vec::new(),
            handed: 0,
            latest: Timestamp::EPOCH,
            reached: Timestamp::EPOCH,
            disorder,
            broken: Broken::default(),
            late: Late::default(),
            read: 0,
        })
    }

    /// The next events, in order of time; none at the end.
    ///
    /// # Errors
    /// That of the source.
    pub fn next_batch(&mut self) -> io::Result<Batch<'_>> {
        self.forget_handed();
        while self.handed == 0 {
            let before = self.events.len();
            let more = self.read_block()?;
            self.put_in_order(before);
            self.handed = self.ready(!more);
            if !more {
                break;
            }
        }
        let events = &self.events[..self.handed];
        self.reached = events.last().map_or(self.reached, |event| event.time);
        Ok(Batch { events, bytes: &self.keys })
    }

    /// Lines that became events until now.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.read
    }

    /// Lines left out until now.
    #[must_use]
    pub const fn broken(&self) -> &Broken {
        &self.broken
    }

    /// Fields of the key that no line has had until now.
    pub fn missing_fields(&self) -> impl Iterator<Item = &str> {
        self.shape.missing()
    }

    /// Lines taken later than they say, until now.
    #[must_use]
    pub const fn late(&self) -> Late {
        self.late
    }

    /// Keeps the events that wait, and their keys.
    fn forget_handed(&mut self) {
        let waiting = self.events.split_off(self.handed);
        let mut keys = Vec::with_capacity(self.keys.capacity());
        self.events.clear();
        for mut event in waiting {
            let start = keys.len();
            keys.extend_from_slice(&self.keys[event.key.0..event.key.1]);
            event.key = (start, keys.len());
            self.events.push(event);
        }
        self.keys = keys;
        self.handed = 0;
    }

    /// Reads a block of whole lines; false at the end.
    fn read_block(&mut self) -> io::Result<bool> {
        while self.filled < self.buffer.len() && !self.ended {
            match self.source.read(&mut self.buffer[self.filled..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let whole = match memrchr(b'\n', &self.buffer[..self.filled]) {
            Some(at) => at + 1,
            None if self.ended => self.filled,
            None => {
                // A line that is longer than the buffer.
                if !self.skipping {
                    self.lines += 1;
                    self.broken.add(self.lines, LogFault::TooLong);
                    self.skipping = true;
                }
                self.filled = 0;
                return Ok(true);
            }
        };
        let whole = if self.ended { self.filled } else { whole };
        let mut at = 0;
        if self.skipping {
            let end = memchr(b'\n', &self.buffer[..whole]);
            at = end.map_or(whole, |end| end + 1);
            self.skipping = false;
        }
        while at < whole {
            let length = memchr(b'\n', &self.buffer[at..whole]).unwrap_or(whole - at);
            self.lines += 1;
            self.read_line(at, length);
            at += length + 1;
        }
        self.buffer.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        Ok(!self.ended || self.filled > 0)
    }

    #[inline]
    fn read_line(&mut self, at: usize, length: usize) {
        let line = &self.buffer[at..at + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return;
        }
        let start = self.keys.len();
        let time = if length > MAX_LINE {
            Err(LogFault::TooLong)
        } else {
            self.shape.read(line, &mut self.keys)
        };
        match time {
            Ok(time) => {
                let key = (start, self.keys.len());
                let (line, kind, policy) = (self.lines, Kind::Take, (0, 0));
                self.events.push(Stored { line, time, cost: 1, kind, key, policy });
                self.read += 1;
            }
            Err(fault) => {
                self.keys.truncate(start);
                self.broken.add(self.lines, fault);
            }
        }
    }

    /// Puts the events from the index `new` on in order with those before them, which are.
    fn put_in_order(&mut self, new: usize) {
        for event in &mut self.events[new..] {
            self.latest = self.latest.max(event.time);
            if event.time < self.reached {
                let moved = self.reached.as_micros() - event.time.as_micros();
                self.late.count += 1;
                self.late.most = self.late.most.max(Duration::from_micros(moved));
                event.time = self.reached;
            }
        }
        if !self.events.is_sorted_by_key(|event| event.time) {
            self.events.sort_by_key(|event| event.time);
        }
    }

    /// How many events can be handed out: none can come before them any more, or too many wait.
    fn ready(&self, ended: bool) -> usize {
        if ended {
            return self.events.len();
        }
        let safe = self.latest.as_micros().saturating_sub(as_micros(self.disorder));
        let ready = self.events.partition_point(|event| event.time.as_micros() <= safe);
        ready.max(self.events.len().saturating_sub(MOST_WAITING))
    }
}

impl Broken {
    #[cold]
    fn add(&mut self, line: u64, fault: LogFault) {
        self.count += 1;
        if self.first.len() < TOLD {
            self.first.push((line, fault));
        }
    }
}

#[cfg(test)]
mod tests;
