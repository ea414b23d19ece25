//! What can be wrong with a log, or with how it is described.

use crate::{error::Quoted, records::MAX_LINE};

/// A description that describes no log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A format that is none.
    #[error(
        "log format `{0}` is none; `combined`, `common`, `json`, or a format string as \
         `$remote_addr [$time_local]` or `%h %t` would do, with something between any two fields"
    )]
    Format(String),
    /// A key whose fields cannot be told.
    #[error("key `{0}` has a brace that is not closed or opened; `{{ip}}:{{path}}` would do")]
    Template(String),
    /// A field that no line has.
    #[error("the log has no field `{name}`; it has {has}")]
    Field {
        /// Its name.
        name: String,
        /// Those that it has.
        has: String,
    },
    /// More fields than are looked at.
    #[error("{0} fields are too many; 11 and the time would do")]
    TooMany(usize),
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogFault {
    /// It has no end in sight.
    #[error("longer than {MAX_LINE} bytes")]
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
    #[error("no JSON: {0}")]
    Json(String),
    /// There is no time in it.
    #[error("there is no time")]
    NoTime,
    /// A time that is none.
    #[error("time `{0}` is of no form that is known, or before 1970 or after 2112")]
    Time(Quoted),
}

fn missing(after: &str, text: &Quoted) -> String {
    if after.is_empty() {
        format!("it does not begin with `{text}`")
    } else {
        format!("there is no `{text}` behind {after}")
    }
}
