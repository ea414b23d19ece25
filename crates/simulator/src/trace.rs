//! Traces: CSV with a header of `t_us,key,cost`, and `policy`, `op`, `id` and `ttl_us` where wanted, in time order.

use std::{io::Read, time::Duration};

use sluicegate_core::Timestamp;

use crate::{
    batch::{self, Batch, Stored},
    error::{Fault, TraceError},
    event::{Event, Kind},
    records::{MAX_FIELDS, Records},
    simple_line::SimpleLine,
};

/// Reads a trace, event by event, without allocating for any.
///
/// Columns are found by name, in any order: `t_us` (whole microseconds since the Unix epoch, never
/// less than on the line before), `key` (any bytes), `cost` (0 ..= 4 294 967 295; may be empty for a settle, which then
/// charges what was held, and for a renew), and optionally `policy` (in force for that event; empty: the default), `op`
/// (`take` when empty, `peek`, `charge`, `refund`, `reset`, `hold`, `settle`, `renew`), `id` (of the hold) and `ttl_us`
/// (of a hold or renew; empty: that of the policy). Fields may be quoted as in RFC 4180; lines end in LF or CRLF; empty
/// lines are skipped.
#[derive(Debug)]
pub struct TraceReader<R> {
    records: Records<R>,
    columns: Columns,
    last: Timestamp,
    /// Events that were read together, and the number of them that were returned.
    batch: Vec<Stored>,
    returned: usize,
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
        Ok(Self { records, columns, last, batch, returned: 0, error: None })
    }

    /// The next event, `None` at the end.
    ///
    /// # Errors
    /// [`TraceError`] if the source fails, and for a broken line: by its number, with the value at
    /// fault. The next call continues after a line with an invalid value.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        if self.returned == self.batch.len() {
            self.read_batch()?;
        }
        let Some(stored) = self.batch.get(self.returned) else { return Ok(None) };
        self.returned += 1;
        Ok(Some(stored.event(self.records.bytes())))
    }

    /// The next events, some at a time; none at the end.
    ///
    /// # Errors
    /// As for [`next_event`](Self::next_event), after the events before the fault.
    pub fn next_batch(&mut self) -> Result<Batch<'_>, TraceError> {
        if self.returned == self.batch.len() {
            self.read_batch()?;
        }
        let events = &self.batch[self.returned..];
        self.returned = self.batch.len();
        Ok(Batch { events, bytes: self.records.bytes() })
    }

    /// Reads the next event, and those after it that are in the buffer already.
    fn read_batch(&mut self) -> Result<(), TraceError> {
        self.batch.clear();
        self.returned = 0;
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
    fn simple_event(&mut self) -> Option<Stored> {
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
        Some(Stored { line, time, cost, kind, key, policy, id: (0, 0), ttl: None })
    }

    /// The event of the record; `None` if it is invalid.
    fn event(&mut self) -> Option<Stored> {
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
        let key = records.range(columns.key);
        let [policy, id] =
            [columns.policy, columns.id].map(|it| it.map_or((0, 0), |it| records.range(it)));
        self.last = time;
        Some(Stored { line: records.line(), time, cost, kind, key, policy, id, ttl })
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
            Some(_) => Fault::Ttl(optional(self.columns.ttl).into()),
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
mod tests {
    use sluicegate_core::HoldOperation;

    use super::*;
    use crate::{event::EventOperation, limits::MAX_LINE};

    /// All events as text, then the error if there is one.
    fn read(trace: impl AsRef<[u8]>) -> String {
        let mut out = String::new();
        let mut reader = match TraceReader::new(trace.as_ref()) {
            Ok(reader) => reader,
            Err(error) => return error.to_string(),
        };
        loop {
            match reader.next_event() {
                Ok(None) => return out,
                Ok(Some(event)) => {
                    let Event { line, time, key, policy, .. } = event;
                    let operation = match event.operation() {
                        EventOperation::Key(operation) => format!("{operation:?}"),
                        EventOperation::Hold(HoldOperation::Hold { id, cost, ttl }) => {
                            format!("Hold({}, {cost}, {ttl:?})", id.escape_ascii())
                        }
                        EventOperation::Hold(HoldOperation::Settle { id, used }) => {
                            format!("Settle({}, {used:?})", id.escape_ascii())
                        }
                        EventOperation::Hold(HoldOperation::Renew { id, ttl }) => {
                            format!("Renew({}, {ttl:?})", id.escape_ascii())
                        }
                    };
                    let (key, policy) = (key.escape_ascii(), policy.escape_ascii());
                    out += &format!("{line}: {time} {key} {policy} {operation}\n");
                }
                Err(error) => return out + &error.to_string(),
            }
        }
    }

    #[test]
    fn trace_columns_are_found_by_name() {
        assert_eq!(
            read("op,cost,policy,key,t_us\n,3,,a,5\nrefund,2,gcra:1/1s,b,6\nreset,0,,,6\n"),
            "2: 5us a  Take(3)\n3: 6us b gcra:1/1s Refund(2)\n4: 6us   Reset\n"
        );
        assert_eq!(
            read("key,t_us,cost,ip"),
            "line 1: unknown column `ip`: expected t_us, key, cost, policy, op, id or ttl_us"
        );
        assert_eq!(
            read("t_us,key,cost,policy,op,id,ttl_us,x"),
            "line 1: unknown column `x`: expected t_us, key, cost, policy, op, id or ttl_us"
        );
        assert_eq!(read("t_us,key,t_us"), "line 1: duplicate column `t_us`: expected it once");
        assert_eq!(read("t_us,key\n1,a"), "line 1: missing column `cost`");
        assert_eq!(read(""), "line 1: missing header: expected `t_us,key,cost`");
    }

    #[test]
    fn trace_hold_columns_are_read() {
        assert_eq!(
            read(
                "t_us,key,cost,op,id,ttl_us\n1,a,2,hold,x,1000\n1,a,2,hold,\"x,\",\n2,a,,settle,x,\n\
                 2,a,0,settle,y,7\n3,a,,renew,z,5000000\n3,a,9,renew,z,\n4,a,1,,z,5\n"
            ),
            "2: 1us a  Hold(x, 2, Some(1ms))\n3: 1us a  Hold(x,, 2, None)\n4: 2us a  Settle(x, None)\n\
             5: 2us a  Settle(y, Some(0))\n6: 3us a  Renew(z, Some(5s))\n7: 3us a  Renew(z, None)\n\
             8: 4us a  Take(1)\n"
        );
        // Without the columns, the id is empty: the core rejects it.
        assert_eq!(read("t_us,key,cost,op\n1,a,2,hold\n"), "2: 1us a  Hold(, 2, None)\n");
    }

    #[test]
    fn trace_quotes_line_ends_and_marks_are_those_of_rfc_4180() {
        assert_eq!(
            read("\u{feff}t_us,\"key\",cost\r\n1,\"a,\"\"b\"\"\",1\r\n\r\n2,\"x\r\ny\",1\n3,c,1"),
            "2: 1us a,\\\"b\\\"  Take(1)\n4: 2us x\\r\\ny  Take(1)\n6: 3us c  Take(1)\n"
        );
        assert_eq!(read(b"t_us,key,cost\n1,\xff\0\r,1\n"), "2: 1us \\xff\\x00\\r  Take(1)\n");
    }

    #[test]
    fn trace_broken_line_error_has_number_and_fault() {
        for (lines, told) in [
            ("1,a,x", "line 2: invalid cost `x`: expected a whole number from 0 to 4294967295"),
            (
                "1,a,4294967296",
                "line 2: invalid cost `4294967296`: expected a whole number from 0 to 4294967295",
            ),
            ("1,a,", "line 2: invalid cost ``: expected a whole number from 0 to 4294967295"),
            (
                "-1,a,1",
                "line 2: invalid t_us `-1`: expected a whole number from 0 to 4503599627370496",
            ),
            (
                "4503599627370497,a,1",
                "line 2: invalid t_us `4503599627370497`: expected a whole number from 0 to 4503599627370496",
            ),
            ("1,a", "line 2: expected 3 fields as in the header, not 2"),
            ("1", "line 2: expected 3 fields as in the header, not 1"),
            ("1,a,1,,,,,", "line 2: expected 3 fields as in the header, not 8"),
            ("\n\n1,\"a", "line 4: missing closing quote"),
            (
                "1,a\"b,1",
                "line 2: invalid field 2: expected quotes around the whole field, and quotes in it doubled",
            ),
            (
                "1,\"a\"b,1",
                "line 2: invalid field 2: expected quotes around the whole field, and quotes in it doubled",
            ),
        ] {
            assert_eq!(read(format!("t_us,key,cost\n{lines}")), told);
        }
        assert_eq!(
            read("t_us,key,cost\n7,\"a\n\",1\n6,a,1\n"),
            "2: 7us a\\n  Take(1)\nline 4: invalid t_us `6`: expected at least `7`, the time of the event before"
        );
        assert_eq!(
            read("t_us,key,cost,op\n7,a,1,wait"),
            "line 2: unknown op `wait`: expected take, peek, charge, refund, reset, hold, settle or renew"
        );
        for (row, fault) in [
            ("7,a,,hold,x,", "invalid cost ``: expected a whole number from 0 to 4294967295"),
            ("7,a,-1,settle,x,", "invalid cost `-1`: expected a whole number from 0 to 4294967295"),
            ("7,a,x,renew,x,", "invalid cost `x`: expected a whole number from 0 to 4294967295"),
            (
                "7,a,1,hold,x,1s",
                "invalid ttl_us `1s`: expected a whole number of microseconds, or nothing",
            ),
        ] {
            let told = read(format!("t_us,key,cost,op,id,ttl_us\n{row}"));
            assert_eq!(told, format!("line 2: {fault}"));
        }
    }

    #[test]
    fn trace_greatest_times_and_costs_are_read() {
        assert_eq!(
            read("t_us,key,cost\n0,,0\n2251799813685248,,4294967295\n4503599627370496,a,1\n"),
            "2: 0us   Take(0)\n3: 2251799813685248us   Take(4294967295)\n\
             4: 4503599627370496us a  Take(1)\n"
        );
    }

    #[test]
    fn trace_line_over_1_mib_is_an_error() {
        for (quote, end) in [("", "\n"), ("\"", "\n"), ("", "")] {
            let key = "k".repeat(MAX_LINE - "1,,1".len() - 2 * quote.len());
            let longest = format!("t_us,key,cost\n1,{quote}{key}{quote},1{end}");
            assert!(read(&longest).starts_with("2: 1us kkk"));
            let longer = format!("t_us,key,cost\n1,{quote}{key}k{quote},1{end}");
            assert_eq!(read(longer), "line 2: expected up to 1048576 bytes");
        }
        let endless = std::io::Read::chain(&b"t_us,key,cost\n1,\""[..], std::io::repeat(b'\n'));
        let mut reader = TraceReader::new(endless).unwrap();
        let error = reader.next_event().unwrap_err();
        assert_eq!(error.to_string(), "line 2: expected up to 1048576 bytes");
        assert!(reader.next_event().unwrap().is_none());
    }

    #[test]
    fn trace_invalid_value_next_event_is_read() {
        let mut reader = TraceReader::new(&b"t_us,key,cost\nx,a,1\n5,a,1\n"[..]).unwrap();
        assert!(reader.next_event().is_err());
        assert_eq!(reader.next_event().unwrap().unwrap().line, 3);
    }
}
