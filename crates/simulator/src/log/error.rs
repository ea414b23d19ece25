//! Errors of logs, and of descriptions of logs.

use crate::{error::Quoted, limits::MAX_LINE};

/// An invalid description of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Invalid format.
    #[error(
        "expected common, combined, vhost_combined, envoy, istio, alb, w3c, json, traefik, or a format string such as \
         `$remote_addr [$time_local]` or `%h %t`, with text between any two fields"
    )]
    Format(String),
    /// Invalid template of a key.
    #[error("expected field names in braces, such as `{{ip}}:{{path}}`")]
    Template(String),
    /// Unknown field.
    #[error("unknown field `{name}`: expected one of {has}")]
    Field {
        /// Its name.
        name: String,
        /// The known fields.
        has: String,
    },
    /// Unknown unit of a field of durations.
    #[error(
        "unknown unit in `{0}`: expected `NAME` or `NAME:UNIT`, with s, ms, us or ns as the unit"
    )]
    Unit(String),
    /// Too many fields.
    #[error("too many fields ({0}): expected up to 11, and the time")]
    TooMany(usize),
}

/// Fault of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogFault {
    /// The line is too long.
    #[error("expected up to {MAX_LINE} bytes")]
    TooLong,
    /// The line does not have the format.
    #[error("{}", missing(.after, .text))]
    Missing {
        /// The field after which a text is missing; empty for the beginning.
        after: String,
        /// The missing text.
        text: Quoted,
    },
    /// A column is empty among others that only spaces separate: it may also be padding.
    #[error("missing {0} before a space; if the space is padding, use `tr -s ' '`")]
    Empty(String),
    /// Lines inside of the line: their ends are other ones.
    #[error("expected one line, found a carriage return in it")]
    Return,
    /// Text precedes the client, or another field of the line is not where it is expected.
    #[error("invalid {name} `{value}`: expected the client at the beginning of the line")]
    Misplaced {
        /// The field.
        name: &'static str,
        /// Its value.
        value: Quoted,
    },
    /// The line has no client.
    #[error("missing client")]
    NoClient,
    /// Invalid client.
    #[error("invalid client `{0}`: expected an address or a host name")]
    Client(Quoted),
    /// A JSON line that is not about a request.
    #[error("expected a request: the line has no client, method, path or status")]
    NoRequest,
    /// The line does not have the columns.
    #[error("expected {expected} fields as in `#Fields`, not {found}")]
    Columns {
        /// Number of fields.
        found: usize,
        /// Number of columns.
        expected: usize,
    },
    /// No line before names the columns.
    #[error("missing `#Fields` before this line")]
    NoColumns,
    /// The line is a part of a longer one.
    #[error("expected a whole line, found a part of one")]
    Part,
    /// The line is not a JSON object.
    #[error("expected a JSON object")]
    Json,
    /// The line has no duration.
    #[error("missing duration")]
    NoDuration,
    /// Invalid duration.
    #[error(
        "invalid duration `{0}`: expected a number up to 366 days, such as `0.250`, or one with a unit (h, m, s, ms, \
         us or ns), such as `12ms`"
    )]
    Duration(Quoted),
    /// The line has no time.
    #[error("missing time")]
    NoTime,
    /// Invalid time.
    #[error(
        "invalid time `{0}`: expected a time from 1970 to 2112, such as `10/Oct/2000:13:55:36 -0700`"
    )]
    Time(Quoted),
}

impl LogFault {
    /// Why lines with this fault were skipped, without their values.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::TooLong => "too long",
            Self::Missing { .. }
            | Self::Misplaced { .. }
            | Self::Json
            | Self::Columns { .. }
            | Self::NoColumns => "of another format",
            Self::Empty(_) => "with an empty field",
            Self::Return => "with a carriage return",
            Self::NoClient => "without a client",
            Self::Client(_) => "with an invalid client",
            Self::NoRequest => "without a request",
            Self::Part => "incomplete",
            Self::NoDuration => "without a duration",
            Self::Duration(_) => "with an invalid duration",
            Self::NoTime => "without a time",
            Self::Time(_) => "with an invalid time",
        }
    }
}

fn missing(after: &str, text: &Quoted) -> String {
    if after.is_empty() {
        format!("expected `{text}` at the beginning")
    } else {
        format!("missing `{text}` after {after}")
    }
}
