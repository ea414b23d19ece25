//! Errors of traces.

use std::{
    fmt::{self, Write},
    io,
};

use sluicegate_core::{HoldError, OperationError, PolicyError, Timestamp};

use crate::{kind::Kind, limits::MAX_LINE};

/// Error of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The source failed.
    #[error("cannot read the trace: {0}")]
    Read(#[from] io::Error),
    /// A line is invalid.
    #[error("line {line}: {fault}")]
    Line {
        /// The line that the record begins on, counted from 1.
        line: u64,
        /// Its fault. Boxed, because every event that is read is in a `Result` with it.
        fault: Box<Fault>,
    },
}

/// Fault of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The line is too long.
    #[error("expected up to {MAX_LINE} bytes")]
    TooLong,
    /// The trace ends inside quotes.
    #[error("missing closing quote")]
    OpenQuote,
    /// Misplaced quote.
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
    /// Unknown column.
    #[error("unknown column `{0}`: expected t_us, key, cost, policy, op, id or ttl_us")]
    UnknownColumn(Quoted),
    /// Duplicate column.
    #[error("duplicate column `{0}`: expected it once")]
    ColumnTwice(&'static str),
    /// Missing column.
    #[error("missing column `{0}`")]
    ColumnMissing(&'static str),
    /// The number of fields differs from the header's.
    #[error("expected {expected} fields as in the header, not {found}")]
    Fields {
        /// Number of fields.
        found: usize,
        /// Number of columns in the header.
        expected: usize,
    },
    /// Invalid time.
    #[error("invalid t_us `{0}`: expected a whole number from 0 to {max}", max = Timestamp::MAX.as_micros())]
    Time(Quoted),
    /// The time is before that of the line above.
    #[error("invalid t_us `{now}`: expected at least `{last}`, the time of the event before")]
    Backwards {
        /// The time of this event, in microseconds.
        now: u64,
        /// The time of the one before.
        last: u64,
    },
    /// Invalid cost.
    #[error("invalid cost `{0}`: expected a whole number from 0 to {max}", max = u32::MAX)]
    Cost(Quoted),
    /// Unknown operation.
    #[error("unknown op `{0}`: expected take, peek, charge, refund, reset, hold, settle or renew")]
    Operation(Quoted),
    /// The policy does not support the operation.
    #[error("{}", unsupported(*.kind, *.error))]
    Unsupported {
        /// The operation.
        kind: Kind,
        /// Its error.
        error: OperationError,
    },
    /// Invalid lifetime of a hold.
    #[error("invalid ttl_us `{0}`: expected a whole number of microseconds, or nothing")]
    Ttl(Quoted),
    /// A column of holds has a value beside another operation.
    #[error("invalid {column} `{value}`: expected nothing, because `{kind}` has none")]
    Unused {
        /// The column.
        column: &'static str,
        /// The value.
        value: Quoted,
        /// The operation.
        kind: Kind,
    },
    /// Invalid operation on a hold.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// Invalid policy.
    #[error("invalid policy `{text}`: {error}")]
    Policy {
        /// The text.
        text: Quoted,
        /// Its error.
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

fn unsupported(kind: Kind, error: OperationError) -> String {
    match error {
        OperationError::Concurrency => format!(
            "invalid op `{kind}` under a policy with `concurrency`: expected hold, settle, renew, peek or reset"
        ),
        other => other.to_string(),
    }
}

/// A value in an error text: escaped where it is not plain, cut where it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted(Box<[u8]>);

/// Maximum length of a value in an error text.
const MAX_QUOTED: usize = 60;

impl From<&[u8]> for Quoted {
    fn from(value: &[u8]) -> Self {
        Self(value[..value.len().min(MAX_QUOTED + 1)].into())
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.len() > MAX_QUOTED;
        let shown = &self.0[..self.0.len().min(MAX_QUOTED)];
        for byte in shown {
            // A quote is plain here: values are in backticks.
            match byte {
                b'"' | b'\'' => formatter.write_char(char::from(*byte))?,
                _ => write!(formatter, "{}", byte.escape_ascii())?,
            }
        }
        formatter.write_str(if cut { "…" } else { "" })
    }
}
