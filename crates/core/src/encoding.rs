//! The byte form of an [`Entry`]: what is kept of a key outside a process.
//!
//! Laid out so that Lua reads it with `struct.unpack` and exact doubles: all numbers little-endian
//! and of a width that what stands before them tells. `docs/state-format.md` is the specification, byte by byte.
//!
//! Invariants: what is decoded equals what was encoded; any bytes decode to an entry or to an
//! error, never to a guess; nothing is allocated by a length that the bytes merely claim.

use std::time::Duration;

use crate::{
    algorithm::{
        Align, BucketState, CounterState, Event, FixedWindow, Gcra, GcraName, GcraState,
        IntervalBucket, Limit, LogState, MAX_COUNT, SlidingCounter, SlidingLog, State, Window,
        WindowState,
    },
    calendar::CalendarUnit,
    entry::{Entry, States},
    policy::{MAX_LIMITS, Policy},
    time::{Timestamp, as_micros},
};

/// The version of the byte form that is written.
const VERSION: u8 = 2;
/// Versions to come end here, so that a value whose first byte is a letter, a digit or a tab is known
/// to be of another program.
const LAST_VERSION: u8 = 7;
/// The one before it, in which the rest of a TAT always takes four bytes.
const WIDE: u8 = 1;

/// Set in the first byte of a limit, beside its machine.
const BORROW: u8 = 0x10;
const COUNT_ALL: u8 = 0x10;
const ALIGN_CLOCK: u8 = 0x20;
const KEEP: u8 = 0x20;
const FLAGS: u8 = 0xf0;

/// No time in a state lies beyond the last timestamp and the longest debt.
const MAX_TIME: u64 = Timestamp::MAX.as_micros() + (1 << 50);

/// Bytes that are not a state which this version can read. Its text is what a key "holds".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Written by a newer version.
    #[error(
        "state of version {0}, and this version of Sluicegate reads up to 2; upgrade Sluicegate"
    )]
    Version(u8),
    /// Written by another program: no version of Sluicegate begins a state so.
    #[error("a value that Sluicegate did not write")]
    Foreign,
    /// It begins as a state does, and does not go on so.
    #[error("damaged state: {0}")]
    Damaged(&'static str),
}

impl Entry {
    /// The entry as bytes.
    ///
    /// ```
    /// use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
    ///
    /// let policy: Policy = "gcra:30/60s:burst=16".parse()?;
    /// let mut entry = None;
    /// let now = Timestamp::from_micros(1_700_000_000_000_000)?;
    /// let _ = apply(&policy, &mut entry, now, Operation::Take(1))?;
    ///
    /// let entry = entry.expect("a unit is in use");
    /// let bytes = entry.encode();
    /// assert_eq!(bytes.len(), 24);
    /// assert_eq!(Entry::decode(&bytes), Ok(entry));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(24));
        out.uint(VERSION.into(), 1);
        out.uint(self.states.len() as u64, 1);
        for (limit, state) in self.limits() {
            out.limit(limit, state);
        }
        out.0
    }

    /// How many bytes [`encode`](Self::encode) makes, which it does not make.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut events = 0;
        let mut out = Writer(Vec::with_capacity(24));
        out.uint(VERSION.into(), 1);
        out.uint(self.states.len() as u64, 1);
        for (limit, state) in self.limits() {
            if let State::SlidingLog(log) = state {
                let (offset, weight) = log_widths(log);
                events += LOG_HEAD + log.len() * (offset + weight);
                out.limit(limit, &State::None);
            } else {
                out.limit(limit, state);
            }
        }
        out.0.len() + events
    }

    /// The entry that `bytes` say.
    ///
    /// # Errors
    /// [`StateError`] for what a later version wrote, and for anything that is no state.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let mut input = Reader(bytes);
        let version = match input.byte() {
            Ok(version @ WIDE..=VERSION) => version,
            Ok(version) if (VERSION..=LAST_VERSION).contains(&version) => {
                return Err(StateError::Version(version));
            }
            Ok(_) | Err(_) => return Err(StateError::Foreign),
        };
        let count = usize::from(input.byte()?);
        if !(1..=MAX_LIMITS).contains(&count) {
            return Err(StateError::Damaged("its number of limits is not 1 to 8"));
        }
        let mut limits = Vec::with_capacity(count);
        let mut states = States::with_capacity(count);
        for _ in 0..count {
            let (limit, state) = input.limit(version == WIDE)?;
            limits.push(limit);
            states.push(state);
        }
        if !input.0.is_empty() {
            return Err(StateError::Damaged("it goes on after its end"));
        }
        let policy =
            Policy::try_from(limits).map_err(|_| StateError::Damaged("it has no limits"))?;
        Ok(Self { policy, states })
    }
}

/// The first byte of a limit, without flags.
fn machine(limit: &Limit) -> u8 {
    match limit {
        Limit::Gcra(limit) => match limit.name() {
            GcraName::Gcra => 1,
            GcraName::TokenBucket => 2,
            GcraName::LeakyBucket => 3,
            GcraName::LeakyQueue => 4,
        },
        Limit::IntervalBucket(_) => 5,
        Limit::FixedWindow(limit) => match limit.window() {
            Window::Span { .. } => 6,
            Window::Calendar { .. } => 7,
        },
        Limit::SlidingLog(_) => 8,
        Limit::SlidingCounter(_) => 9,
    }
}

struct Writer(Vec<u8>);

impl Writer {
    /// The low `width` bytes of `value`.
    fn uint(&mut self, value: u64, width: usize) {
        self.0.extend_from_slice(&value.to_le_bytes()[..width]);
    }

    fn head(&mut self, machine: u8, flags: u8, limit: u32) {
        self.uint((machine | flags).into(), 1);
        self.uint(limit.into(), 4);
    }

    fn limit(&mut self, limit: &Limit, state: &State) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let machine = machine(limit);
        match limit {
            Limit::Gcra(limit) => {
                self.head(machine, flag(limit.borrow(), BORROW), limit.limit());
                self.uint(as_micros(limit.period()), 6);
                self.uint(limit.burst().into(), 4);
                let tat = if let State::Gcra(state) = state { state.tat } else { 0 };
                let scale = u128::from(limit.scale());
                self.uint(u64::try_from(tat / scale).unwrap_or(MAX_TIME), 7);
                self.uint(u64::try_from(tat % scale).unwrap_or(0), limit.rest_width());
            }
            Limit::IntervalBucket(limit) => {
                self.head(machine, flag(limit.borrow(), BORROW), limit.limit());
                self.uint(as_micros(limit.period()), 6);
                self.uint(limit.burst().into(), 4);
                let (last, used) = match state {
                    State::IntervalBucket(state) => (state.last, state.used),
                    _ => (0, 0),
                };
                self.uint(last, 7);
                self.uint(u64::try_from(used & 0xffff_ffff_ffff).unwrap_or(0), 6);
                self.uint(u64::try_from(used >> 48).unwrap_or(u64::MAX), 4);
            }
            Limit::FixedWindow(limit) => {
                let count_all = flag(limit.count_all(), COUNT_ALL);
                let (start, used) = match state {
                    State::FixedWindow(state) => (state.start, state.used),
                    _ => (0, 0),
                };
                match limit.window() {
                    Window::Span { period, align } => {
                        let clock = flag(align == Align::Clock, ALIGN_CLOCK);
                        self.head(machine, count_all | clock, limit.limit());
                        self.uint(as_micros(period), 6);
                        self.uint(start, 7);
                    }
                    Window::Calendar { unit, zone } => {
                        self.head(machine, count_all, limit.limit());
                        self.uint(unit as u64, 1);
                        self.uint(zone.len() as u64, 1);
                        self.0.extend_from_slice(zone.as_bytes());
                        self.uint(start, 7);
                        // For readers that know no calendar.
                        self.uint(if used > 0 { limit.end(start) } else { 0 }, 7);
                    }
                }
                self.uint(used, 7);
            }
            Limit::SlidingLog(limit) => {
                let count_all = flag(limit.count_all(), COUNT_ALL);
                self.head(machine, count_all | flag(limit.keep().is_some(), KEEP), limit.limit());
                self.uint(as_micros(limit.period()), 6);
                if let Some(keep) = limit.keep() {
                    self.uint(as_micros(keep), 6);
                    self.uint(limit.keep_units().into(), 4);
                }
                self.log(state);
            }
            Limit::SlidingCounter(limit) => {
                self.head(machine, flag(limit.count_all(), COUNT_ALL), limit.limit());
                self.uint(as_micros(limit.period()), 6);
                let (start, prev, cur) = match state {
                    State::SlidingCounter(state) => (state.start, state.prev, state.cur),
                    _ => (0, 0, 0),
                };
                self.uint(start, 7);
                self.uint(prev, 7);
                self.uint(cur, 7);
            }
        }
    }

    /// Events as offsets from the first, in as few bytes as the greatest needs.
    fn log(&mut self, state: &State) {
        let State::SlidingLog(log) = state else {
            self.uint(0, 4);
            return;
        };
        let (offset_width, weight_width) = log_widths(log);
        let first = log.bounds().map_or(0, |(first, _)| first);
        self.uint(log.len() as u64, 4);
        self.uint(first, 7);
        self.uint(offset_width as u64, 1);
        self.uint(weight_width as u64, 1);
        self.0.reserve(log.len() * (offset_width + weight_width));
        for Event { time, weight } in log.events() {
            self.uint(time - first, offset_width);
            self.uint(weight, weight_width);
        }
    }
}

/// Bytes between the number of events of a log and the first event.
const LOG_HEAD: usize = 9;

/// Bytes of the offset and the weight of each event of a log.
fn log_widths(log: &LogState) -> (usize, usize) {
    let (first, last) = log.bounds().unwrap_or_default();
    // Events that all weigh 1, as nearly all do, need not say so, nor be looked at.
    let weight = if log.is_all_ones() {
        0
    } else {
        width(log.events().map(|event| event.weight).max().unwrap_or(1))
    };
    (width(last - first).max(1), weight)
}

/// Bytes that hold `value`.
const fn width(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()).div_ceil(8) as usize
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], StateError> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or(StateError::Damaged("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, StateError> {
        Ok(self.take(1)?[0])
    }

    fn uint(&mut self, width: usize) -> Result<u64, StateError> {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn period(&mut self) -> Result<Duration, StateError> {
        self.uint(6).map(Duration::from_micros)
    }

    fn time(&mut self) -> Result<u64, StateError> {
        at_most(self.uint(7)?, MAX_TIME, "a time is out of bounds")
    }

    fn count(&mut self) -> Result<u64, StateError> {
        at_most(self.uint(7)?, MAX_COUNT, "a count is out of bounds")
    }

    fn limit(&mut self, wide: bool) -> Result<(Limit, State), StateError> {
        let head = self.byte()?;
        let (machine, flags) = (head & !FLAGS, head & FLAGS);
        let known = match machine {
            1..=3 | 5 => BORROW,
            4 => 0,
            6 => COUNT_ALL | ALIGN_CLOCK,
            7 | 9 => COUNT_ALL,
            8 => COUNT_ALL | KEEP,
            _ => return Err(StateError::Damaged("a limit is of no known algorithm")),
        };
        if flags & !known != 0 {
            return Err(StateError::Damaged("a limit has an unknown flag"));
        }
        let borrow = flags & BORROW != 0;
        let count_all = flags & COUNT_ALL != 0;
        let limit = self.u32()?;
        match machine {
            1..=4 => {
                let name = match machine {
                    1 => GcraName::Gcra,
                    2 => GcraName::TokenBucket,
                    3 => GcraName::LeakyBucket,
                    _ => GcraName::LeakyQueue,
                };
                let limit = Gcra::new(name, limit, self.period()?, Some(self.u32()?), borrow);
                let limit = limit.map_err(damaged)?;
                let width = if wide { 4 } else { limit.rest_width() };
                let (whole, part) = (self.time()?, self.uint(width)?);
                if part >= u64::from(limit.scale()) {
                    return Err(StateError::Damaged("a part of a microsecond is out of bounds"));
                }
                let tat = u128::from(whole) * u128::from(limit.scale()) + u128::from(part);
                let state = if tat == 0 { State::None } else { State::Gcra(GcraState { tat }) };
                Ok((Limit::Gcra(limit), state))
            }
            5 => {
                let limit = IntervalBucket::new(limit, self.period()?, Some(self.u32()?), borrow);
                let limit = limit.map_err(damaged)?;
                let (last, low, high) = (self.time()?, self.uint(6)?, self.uint(4)?);
                let used = u128::from(high) << 48 | u128::from(low);
                if used > limit.most_used() {
                    return Err(StateError::Damaged("a count is out of bounds"));
                }
                let state = match used {
                    0 => State::None,
                    _ => State::IntervalBucket(BucketState { used, last }),
                };
                Ok((Limit::IntervalBucket(limit), state))
            }
            6 => {
                let align = if flags & ALIGN_CLOCK == 0 { Align::First } else { Align::Clock };
                let window = Window::Span { period: self.period()?, align };
                let limit = FixedWindow::new(limit, &window, count_all).map_err(damaged)?;
                let (start, used) = (self.time()?, self.count()?);
                Ok((Limit::FixedWindow(limit), window_state(start, used)))
            }
            7 => {
                let unit = usize::from(self.byte()?);
                let unit = CalendarUnit::ALL.get(unit).copied();
                let unit = unit.ok_or(StateError::Damaged("a calendar unit is unknown"))?;
                let length = usize::from(self.byte()?);
                let zone = std::str::from_utf8(self.take(length)?)
                    .map_err(|_| StateError::Damaged("the name of a time zone is not UTF-8"))?;
                let window = Window::Calendar { unit, zone: zone.to_owned() };
                let limit = FixedWindow::new(limit, &window, count_all).map_err(damaged)?;
                let (start, _end, used) = (self.time()?, self.time()?, self.count()?);
                Ok((Limit::FixedWindow(limit), window_state(start, used)))
            }
            8 => {
                let period = self.period()?;
                let (keep, keep_max) = match flags & KEEP {
                    0 => (None, None),
                    _ => (Some(self.period()?), Some(self.u32()?)),
                };
                let limit = SlidingLog::new(limit, period, count_all, keep, keep_max);
                // One without `keep` may begin with events that are gone.
                let gone = if keep.is_none() { Some(as_micros(period)) } else { None };
                Ok((Limit::SlidingLog(limit.map_err(damaged)?), self.log(gone)?))
            }
            _ => {
                let limit = SlidingCounter::new(limit, self.period()?, count_all);
                let limit = limit.map_err(damaged)?;
                let (start, prev, cur) = (self.time()?, self.count()?, self.count()?);
                let state = match (prev, cur) {
                    (0, 0) => State::None,
                    _ => State::SlidingCounter(CounterState { start, prev, cur }),
                };
                Ok((Limit::SlidingCounter(limit), state))
            }
        }
    }

    fn log(&mut self, gone: Option<u64>) -> Result<State, StateError> {
        let count = usize::try_from(self.u32()?)
            .map_err(|_| StateError::Damaged("a log is longer than memory"))?;
        if count == 0 {
            return Ok(State::None);
        }
        let first = self.time()?;
        let (offset_width, weight_width) = (usize::from(self.byte()?), usize::from(self.byte()?));
        if !(1..=7).contains(&offset_width) || weight_width > 7 {
            return Err(StateError::Damaged("the width of an event is out of bounds"));
        }
        let size = count.checked_mul(offset_width + weight_width);
        let mut events = Reader(self.take(size.unwrap_or(usize::MAX))?);
        let events = (0..count).map_while(|_| {
            let time = first + events.uint(offset_width).ok()?;
            let weight = if weight_width == 0 { 1 } else { events.uint(weight_width).ok()? };
            (time <= MAX_TIME).then_some(Event { time, weight })
        });
        match LogState::from_events(events) {
            Some(mut log) if log.len() == count => {
                gone.into_iter().for_each(|period| log.drop_gone(period));
                Ok(State::SlidingLog(log))
            }
            _ => Err(StateError::Damaged("the events of a log are out of order or out of bounds")),
        }
    }
}

fn at_most(value: u64, most: u64, what: &'static str) -> Result<u64, StateError> {
    if value <= most { Ok(value) } else { Err(StateError::Damaged(what)) }
}

fn window_state(start: u64, used: u64) -> State {
    match used {
        0 => State::None,
        _ => State::FixedWindow(WindowState { start, used }),
    }
}

fn damaged(_: crate::LimitError) -> StateError {
    StateError::Damaged("a limit has a parameter outside its domain")
}
