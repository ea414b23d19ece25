//! Traces: CSV with a header of `t_us,key,cost`, and `policy`, `op`, `id` and `ttl_us` where wanted, in time order.

use std::{io::Read, time::Duration};

use sluicegate_core::Timestamp;

use crate::{
    batch::{self, Batch, StoredEvent},
    error::{Fault, TraceError},
    kind::Kind,
    records::{MAX_FIELDS, Records},
    simple_line::SimpleLine,
};

/// Reads a trace, without an allocation for each event.
///
/// Columns are found by name, in any order: `t_us` (whole microseconds since the Unix epoch, never less than on the
/// line before), `key` (any bytes), `cost` (0 to 4 294 967 295; may be empty for a settle, which then charges the
/// units held, and for a renew), and optionally `policy` (for that event; empty: the default), `op` (`take` when
/// empty, `peek`, `charge`, `refund`, `reset`, `hold`, `settle`, `renew`), `id` (of the hold) and `ttl_us` (of a hold
/// or renew; empty: that of the policy). Fields may be quoted as in RFC 4180; lines end in LF or CRLF; empty lines
/// are skipped.
#[derive(Debug)]
pub struct TraceReader<R> {
    records: Records<R>,
    columns: Columns,
    last: Timestamp,
    /// Events that were read together.
    batch: Vec<StoredEvent>,
    /// The error of the line after them.
    error: Option<TraceError>,
}

/// In which field each column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    count: usize,
    time: usize,
    key: usize,
    cost: usize,
    policy: Option<usize>,
    operation: Option<usize>,
    id: Option<usize>,
    ttl: Option<usize>,
}

const NAMES: [&str; 7] = ["t_us", "key", "cost", "policy", "op", "id", "ttl_us"];

impl<R: Read> TraceReader<R> {
    /// Reads the header. `source` need not be buffered.
    ///
    /// # Errors
    /// [`TraceError`] if the source fails, or for a header that has an unknown column, one twice,
    /// or not all that are needed.
    pub fn new(source: R) -> Result<Self, TraceError> {
        let mut records = Records::new(source);
        records.skip_byte_order_mark()?;
        if !records.advance()? {
            return Err(Fault::NoHeader.at(1));
        }
        let columns = Columns::of(&records).map_err(|fault| fault.at(records.line()))?;
        let (last, batch) = (Timestamp::EPOCH, Vec::with_capacity(batch::MAX_EVENTS));
        Ok(Self { records, columns, last, batch, error: None })
    }

    /// The next events, some at a time; none at the end.
    ///
    /// # Errors
    /// [`TraceError`] if the source fails, and for a broken line: by its number, with the value at
    /// fault, after the events before it. The next call continues after a line with an invalid value.
    pub fn next_batch(&mut self) -> Result<Batch<'_>, TraceError> {
        self.read_batch()?;
        Ok(Batch { events: &self.batch, bytes: self.records.bytes() })
    }

    /// Reads the next event, and those after it that are in the buffer already.
    fn read_batch(&mut self) -> Result<(), TraceError> {
        self.batch.clear();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if !self.records.advance()? {
            return Ok(());
        }
        match self.event() {
            Some(event) => self.batch.push(event),
            None => return Err(self.fault().at(self.records.line())),
        }
        if self.records.is_quoted() {
            return Ok(());
        }
        while self.batch.len() < batch::MAX_EVENTS {
            if let Some(event) = self.simple_event() {
                self.batch.push(event);
                continue;
            }
            if !self.records.advance_in_place() {
                break;
            }
            match self.event() {
                Some(event) => self.batch.push(event),
                None => {
                    self.error = Some(self.fault().at(self.records.line()));
                    break;
                }
            }
        }
        Ok(())
    }

    /// The event on the next line, if that is a simple one in order of time.
    fn simple_event(&mut self) -> Option<StoredEvent> {
        if self.columns != Columns::SIMPLE {
            return None;
        }
        let times = self.last.as_micros()..=Timestamp::MAX.as_micros();
        let (found, start, line) = self.records.simple_line(|it| times.contains(&it.time))?;
        let SimpleLine { time, key, cost, .. } = found;
        let time = Timestamp::saturating_from_micros(time);
        self.last = time;
        let key = (start + key.0, start + key.1);
        let (cost, kind, policy) = (Some(cost), Kind::Take, (0, 0));
        Some(StoredEvent { line, time, cost, kind, key, policy, id: (0, 0), ttl: None })
    }

    /// The event of the record; `None` if it is invalid.
    fn event(&mut self) -> Option<StoredEvent> {
        let (columns, records) = (&self.columns, &self.records);
        if records.count() != columns.count {
            return None;
        }
        let time = time(records.field(columns.time)).filter(|time| *time >= self.last)?;
        let kind = match columns.operation {
            Some(index) => Kind::of(records.field(index))?,
            None => Kind::Take,
        };
        let cost = cost(kind, records.field(columns.cost))?;
        let ttl = columns.ttl.map_or(Some(None), |index| ttl(records.field(index)))?;
        let has_id = columns.id.is_some_and(|index| !records.field(index).is_empty());
        if has_id && !kind.has_id() || ttl.is_some() && !kind.has_ttl() {
            return None;
        }
        let key = records.range(columns.key);
        let [policy, id] =
            [columns.policy, columns.id].map(|it| it.map_or((0, 0), |it| records.range(it)));
        self.last = time;
        Some(StoredEvent { line: records.line(), time, cost, kind, key, policy, id, ttl })
    }

    fn field(&self, index: usize) -> &[u8] {
        self.records.field(index)
    }

    /// The first fault of an invalid record.
    #[cold]
    fn fault(&self) -> Fault {
        let (found, expected) = (self.records.count(), self.columns.count);
        if found != expected {
            return Fault::Fields { found, expected };
        }
        let field = self.field(self.columns.time);
        match time(field) {
            None => return Fault::Time(field.into()),
            Some(now) if now < self.last => {
                return Fault::Backwards { now: now.as_micros(), last: self.last.as_micros() };
            }
            Some(_) => {}
        }
        let optional = |column: Option<usize>| column.map_or(&b""[..], |index| self.field(index));
        let operation = optional(self.columns.operation);
        let field = self.field(self.columns.cost);
        match Kind::of(operation) {
            None => Fault::Operation(operation.into()),
            Some(kind) if cost(kind, field).is_none() => Fault::Cost(field.into()),
            Some(kind) => {
                let [id, given] = [self.columns.id, self.columns.ttl].map(optional);
                let unused =
                    |column, value: &[u8]| Fault::Unused { column, value: value.into(), kind };
                match (kind.has_id(), kind.has_ttl()) {
                    _ if ttl(given).is_none() => Fault::Ttl(given.into()),
                    (false, _) if !id.is_empty() => unused("id", id),
                    _ => unused("ttl_us", given),
                }
            }
        }
    }
}

fn time(field: &[u8]) -> Option<Timestamp> {
    Timestamp::from_micros(number(field)?).ok()
}

/// The cost, if there is one; `None` for an invalid one.
fn cost(kind: Kind, field: &[u8]) -> Option<Option<u32>> {
    if field.is_empty() && kind.may_omit_cost() {
        return Some(None);
    }
    u32::try_from(number(field)?).ok().map(Some)
}

/// The lifetime of a hold, if there is one; `None` for an invalid one.
fn ttl(field: &[u8]) -> Option<Option<Duration>> {
    if field.is_empty() {
        return Some(None);
    }
    number(field).map(|micros| Some(Duration::from_micros(micros)))
}

/// A whole number in decimal digits. The standard library reads only UTF-8, and accepts a sign.
fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

impl Columns {
    /// `t_us,key,cost`.
    const SIMPLE: Self = Self {
        count: 3,
        time: 0,
        key: 1,
        cost: 2,
        policy: None,
        operation: None,
        id: None,
        ttl: None,
    };

    fn of(header: &Records<impl Read>) -> Result<Self, Fault> {
        let mut places = [None; NAMES.len()];
        for index in 0..header.count().min(MAX_FIELDS) {
            let field = header.field(index);
            let known = NAMES.iter().position(|name| name.as_bytes() == field);
            let column = known.ok_or_else(|| Fault::UnknownColumn(field.into()))?;
            if places[column].replace(index).is_some() {
                return Err(Fault::ColumnTwice(NAMES[column]));
            }
        }
        let needed = |column: usize| places[column].ok_or(Fault::ColumnMissing(NAMES[column]));
        Ok(Self {
            count: header.count(),
            time: needed(0)?,
            key: needed(1)?,
            cost: needed(2)?,
            policy: places[3],
            operation: places[4],
            id: places[5],
            ttl: places[6],
        })
    }
}

#[cfg(test)]
mod tests;
