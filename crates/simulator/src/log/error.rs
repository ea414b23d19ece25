//! Errors of logs, and of descriptions of logs.

use crate::{error::Quoted, limits::MAX_LINE};

/// An invalid description of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Invalid format.
    #[error(
        "expected combined, common, json, or a format string such as `$remote_addr [$time_local]` or \
         `%h %t`, with text between any two fields"
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
    /// The line is not a JSON object.
    #[error("expected a JSON object")]
    Json,
    /// The line has no duration.
    #[error("missing duration")]
    NoDuration,
    /// Invalid duration.
    #[error("invalid duration `{0}`: expected a number up to 366 days, such as `0.250`")]
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

fn missing(after: &str, text: &Quoted) -> String {
    if after.is_empty() {
        format!("expected `{text}` at the beginning")
    } else {
        format!("missing `{text}` after {after}")
    }
}
