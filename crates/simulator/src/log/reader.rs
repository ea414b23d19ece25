//! Reads a log block by block.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    time::Duration,
};

use memchr::{memchr, memrchr};
use sluicegate_core::{Timestamp, as_micros};

use super::{
    error::{LogError, LogFault},
    fields::KeyTemplate,
    shape::{DurationField, LogFormat, Moment, Shape},
};
use crate::{
    batch::{Batch, StoredEvent},
    kind::Kind,
    limits::{BYTE_ORDER_MARK, MAX_LINE},
};

/// Bytes read at a time.
const BLOCK: usize = 2 * MAX_LINE;
/// Maximum number of events that wait for earlier ones: of takes, and of starts and ends, which wait for the end of the
/// requests before.
const MAX_WAITING: usize = 65_536;
const MAX_WAITING_ENDS: usize = 1 << 20;
/// Maximum number of broken lines that are reported one by one.
const MAX_REPORTED: usize = 5;

/// Lines that were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// Their number.
    pub count: u64,
    /// Their number by [`LogFault::reason`].
    pub reasons: BTreeMap<&'static str, u64>,
    /// The first few, each with its number (counted from 1) and its fault.
    pub first: Vec<(u64, LogFault)>,
}

/// Lines that came too late to be sorted, and were moved to a later time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateLines {
    /// Their number.
    pub count: u64,
    /// The longest move.
    pub most: Duration,
}

/// Reads an access log as events: each line is a take of cost 1 or, with its duration, the start of a request of cost 1
/// and its end.
#[derive(Debug)]
pub struct LogReader<R> {
    source: R,
    shape: Shape,
    /// The first `filled` bytes are lines; the last one may be incomplete.
    buffer: Vec<u8>,
    filled: usize,
    ended: bool,
    /// Whether the current line is too long, and is skipped to its end.
    skipping: bool,
    /// Number of lines read.
    lines: u64,
    events: Vec<StoredEvent>,
    /// The keys of the events, concatenated.
    keys: Vec<u8>,
    /// Number of events that were returned.
    returned: usize,
    /// The time of the last line.
    previous: Timestamp,
    /// The latest time that two adjacent lines have reached, because one alone may be wrong.
    latest: Timestamp,
    /// The time of the last event that was returned.
    reached: Timestamp,
    disorder: Duration,
    /// Maximum number of events that wait.
    max_waiting: usize,
    broken: Broken,
    late: LateLines,
    /// Number of lines that are events.
    read: u64,
}

impl<R: Read> LogReader<R> {
    /// Reads lines of `format`; `key` is made of their fields, and the time is in `time_field` if
    /// that is given. Lines within `disorder` of each other are sorted; with `duration`, requests of up to `disorder`
    /// begin when they did.
    ///
    /// # Errors
    /// [`LogError`] for a field that is not in the format.
    pub fn new(
        source: R,
        format: &LogFormat,
        key: &KeyTemplate,
        time_field: Option<&str>,
        duration: DurationField<'_>,
        disorder: Duration,
    ) -> Result<Self, LogError> {
        let shape = Shape::new(format, key, time_field, duration)?;
        let is_ignored = duration == DurationField::Ignored;
        let max_waiting = if is_ignored { MAX_WAITING } else { MAX_WAITING_ENDS };
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
            returned: 0,
            previous: Timestamp::EPOCH,
            latest: Timestamp::EPOCH,
            reached: Timestamp::EPOCH,
            disorder,
            max_waiting,
            broken: Broken::default(),
            late: LateLines::default(),
            read: 0,
        })
    }

    /// The next events, in order of time; none at the end.
    ///
    /// # Errors
    /// That of the source.
    pub fn next_batch(&mut self) -> io::Result<Batch<'_>> {
        self.remove_returned();
        while self.returned == 0 {
            let before = self.events.len();
            let more = self.read_block()?;
            self.sort(before);
            self.returned = self.ready(!more);
            if !more {
                break;
            }
        }
        let events = &self.events[..self.returned];
        self.reached = events.last().map_or(self.reached, |event| event.time);
        Ok(Batch { events, bytes: &self.keys })
    }

    /// Number of lines that became events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.read
    }

    /// Lines skipped so far.
    #[must_use]
    pub const fn broken(&self) -> &Broken {
        &self.broken
    }

    /// Fields of the key that no line has had so far.
    pub fn missing_fields(&self) -> impl Iterator<Item = &str> {
        self.shape.missing()
    }

    /// Lines moved to a later time so far.
    #[must_use]
    pub const fn late(&self) -> LateLines {
        self.late
    }

    /// Removes the events that were returned, and their keys.
    fn remove_returned(&mut self) {
        let waiting = self.events.split_off(self.returned);
        let mut keys = Vec::with_capacity(self.keys.capacity());
        self.events.clear();
        for mut event in waiting {
            for range in [&mut event.key, &mut event.id] {
                let start = keys.len();
                keys.extend_from_slice(&self.keys[range.0..range.1]);
                *range = (start, keys.len());
            }
            self.events.push(event);
        }
        self.keys = keys;
        self.returned = 0;
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
                // The line is longer than the buffer.
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

    fn read_line(&mut self, at: usize, length: usize) {
        let line = &self.buffer[at..at + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mark = if self.lines == 1 { BYTE_ORDER_MARK } else { b"" };
        let line = line.strip_prefix(mark).unwrap_or(line);
        if line.is_empty() {
            return;
        }
        let start = self.keys.len();
        let moment = if length > MAX_LINE {
            Err(LogFault::TooLong)
        } else if memchr(b'\r', line.trim_ascii_end()).is_some() {
            Err(LogFault::Return)
        } else {
            self.shape.read(line, &mut self.keys)
        };
        match moment {
            Ok(None) => self.keys.truncate(start),
            Ok(Some(moment)) => {
                let key = (start, self.keys.len());
                self.add(moment, key);
                self.read += 1;
            }
            Err(fault) => {
                self.keys.truncate(start);
                self.broken.add(self.lines, fault);
            }
        }
    }

    /// Adds the events of the line.
    fn add(&mut self, moment: Moment, key: (usize, usize)) {
        let (line, policy, ttl) = (self.lines, (0, 0), None);
        let event =
            |time, kind, cost, id| StoredEvent { line, time, cost, kind, key, policy, id, ttl };
        let time = match moment {
            Moment::At(time) => {
                self.events.push(event(time, Kind::Take, Some(1), (0, 0)));
                time
            }
            Moment::Between(start, end) => {
                self.keys.extend_from_slice(&line.to_le_bytes());
                let id = (key.1, self.keys.len());
                self.events.push(event(start, Kind::Start, Some(1), id));
                self.events.push(event(end, Kind::End, None, id));
                end
            }
        };
        self.latest = self.latest.max(time.min(self.previous));
        self.previous = time;
    }

    /// Sorts the events from the index `new` on into those before them.
    fn sort(&mut self, new: usize) {
        for event in &mut self.events[new..] {
            if event.time < self.reached {
                let moved = self.reached.as_micros() - event.time.as_micros();
                // A request that ends too late has begun too late.
                self.late.count += u64::from(event.kind != Kind::End);
                self.late.most = self.late.most.max(Duration::from_micros(moved));
                event.time = self.reached;
            }
        }
        if !self.events.is_sorted_by_key(|event| event.time) {
            self.events.sort_by_key(|event| event.time);
        }
    }

    /// Number of events that can be returned: no earlier line can follow, or too many wait.
    fn ready(&self, ended: bool) -> usize {
        if ended {
            return self.events.len();
        }
        let safe = self.latest.as_micros().saturating_sub(as_micros(self.disorder));
        let ready = self.events.partition_point(|event| event.time.as_micros() <= safe);
        ready.max(self.events.len().saturating_sub(self.max_waiting))
    }
}

impl Broken {
    #[cold]
    fn add(&mut self, line: u64, fault: LogFault) {
        self.count += 1;
        *self.reasons.entry(fault.reason()).or_default() += 1;
        if self.first.len() < MAX_REPORTED {
            self.first.push((line, fault));
        }
    }
}

#[cfg(test)]
mod tests;
