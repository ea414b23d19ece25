//! What can be wrong with a log, or with how it is described.

use crate::{error::Quoted, limits::MAX_LINE};

/// A description that describes no log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A format that is none.
    #[error(
        "expected combined, common, json, or a format string such as `$remote_addr [$time_local]` or \
         `%h %t`, with text between any two fields"
    )]
    Format(String),
    /// A key whose fields cannot be told.
    #[error("expected field names in braces, such as `{{ip}}:{{path}}`")]
    Template(String),
    /// A field that no line has.
    #[error("unknown field `{name}`: expected one of {has}")]
    Field {
        /// Its name.
        name: String,
        /// Those that it has.
        has: String,
    },
    /// More fields than are looked at.
    #[error("too many fields ({0}): expected up to 11, and the time")]
    TooMany(usize),
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogFault {
    /// It has no end in sight.
    #[error("expected up to {MAX_LINE} bytes")]
    TooLong,
    /// It has not the shape of the format.
    #[error("{}", missing(.after, .text))]
    Missing {
        /// The field behind which something is missing; empty for the beginning.
        after: String,
        /// What is missing.
        text: Quoted,
    },
    /// It is no object of JSON.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// There is no time in it.
    #[error("missing time")]
    NoTime,
    /// A time that is none.
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
