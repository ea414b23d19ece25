//! What can be wrong with a trace, and where.

use std::{
    fmt::{self, Write},
    io,
};

use sluicegate_core::{PolicyError, Timestamp};

use crate::limits::MAX_LINE;

/// A trace that cannot be read, or makes no sense.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Its source failed.
    #[error("cannot read the trace: {0}")]
    Read(#[from] io::Error),
    /// A line is broken.
    #[error("line {line}: {fault}")]
    Line {
        /// The line that the record begins on, counted from 1.
        line: u64,
        /// What is wrong with it. Boxed, because every event read is beside it in a `Result`.
        fault: Box<Fault>,
    },
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It has no end in sight.
    #[error("expected up to {MAX_LINE} bytes")]
    TooLong,
    /// The trace ends inside quotes.
    #[error("missing closing quote")]
    OpenQuote,
    /// A quote where none may stand.
    #[error(
        "invalid field {}: expected quotes around the whole field, and quotes in it doubled",
        .field + 1
    )]
    StrayQuote {
        /// Which field, from 0.
        field: usize,
    },
    /// The trace is empty.
    #[error("missing header: expected `t_us,key,cost`")]
    NoHeader,
    /// A column that is not known.
    #[error("unknown column `{0}`: expected t_us, key, cost, policy or op")]
    UnknownColumn(Quoted),
    /// A column that occurs twice.
    #[error("duplicate column `{0}`: expected it once")]
    ColumnTwice(&'static str),
    /// A column that must be there.
    #[error("missing column `{0}`")]
    ColumnMissing(&'static str),
    /// Not as many fields as the header has.
    #[error("expected {expected} fields as in the header, not {found}")]
    Fields {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A time that is none.
    #[error("invalid t_us `{0}`: expected a whole number from 0 to {max}", max = Timestamp::MAX.as_micros())]
    Time(Quoted),
    /// A time before that of the line above.
    #[error("invalid t_us `{now}`: expected at least `{last}`, the time of the event before")]
    Backwards {
        /// The time of this event, in microseconds.
        now: u64,
        /// The time of the one before.
        last: u64,
    },
    /// A cost that is none.
    #[error("invalid cost `{0}`: expected a whole number from 0 to {max}", max = u32::MAX)]
    Cost(Quoted),
    /// An operation that is none.
    #[error("unknown op `{0}`: expected take, peek, charge, refund or reset")]
    Operation(Quoted),
    /// A policy that is none.
    #[error("invalid policy `{text}`: {error}")]
    Policy {
        /// The text.
        text: Quoted,
        /// What is wrong with it.
        error: PolicyError,
    },
    /// No policy is named, and there is no default.
    #[error("missing policy: use --policy, or a `policy` column")]
    NoPolicy,
}

impl Fault {
    /// This fault as an error of `line`.
    #[cold]
    pub(crate) fn at(self, line: u64) -> TraceError {
        TraceError::Line { line, fault: Box::new(self) }
    }
}

/// A value for an error text: escaped where it is no plain text, cut where it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted(Box<[u8]>);

/// Bytes of a value that an error shows.
const SHOWN: usize = 60;

impl From<&[u8]> for Quoted {
    fn from(value: &[u8]) -> Self {
        Self(value[..value.len().min(SHOWN + 1)].into())
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.len() > SHOWN;
        let shown = &self.0[..self.0.len().min(SHOWN)];
        for byte in shown {
            // A quote is plain here: values stand between backticks.
            match byte {
                b'"' | b'\'' => formatter.write_char(char::from(*byte))?,
                _ => write!(formatter, "{}", byte.escape_ascii())?,
            }
        }
        formatter.write_str(if cut { "…" } else { "" })
    }
}
