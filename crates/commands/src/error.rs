//! Errors of commands, with the text that every protocol replies with.

use std::fmt;

use sluicegate_core::{KeyLengthError, OperationError, PolicyError, StateError};

use crate::spec::CommandSpec;

/// Why a command fails. Its text is the whole error reply and starts with the class:
/// `ERR` for arguments, `SGPOLICY` for a policy, `SGSTATE` for a state that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// An unknown command.
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}{similar}")]
    UnknownCommand {
        /// The name, shortened and made printable.
        name: String,
        /// The first arguments, each in quotes and followed by a space.
        arguments: String,
        /// A command with a similar name: `(did you mean 'SG.TAKE'?)`, or nothing.
        similar: String,
    },
    /// Too few or too many arguments.
    #[error(
        "ERR wrong number of arguments for '{}' command; expected {}",
        .0.name.to_ascii_lowercase(),
        .0.syntax()
    )]
    Arity(&'static CommandSpec),
    /// A command on several keys with more or fewer takes than its `n`.
    #[error(
        "ERR wrong number of arguments for '{}' command; {announced} announced and {given} given{}; \
         expected {}",
        .spec.name.to_ascii_lowercase(),
        if *.incomplete { " (the last one is incomplete)" } else { "" },
        .spec.syntax()
    )]
    TakeCount {
        /// The command.
        spec: &'static CommandSpec,
        /// The value of `n`.
        announced: usize,
        /// Number of complete takes.
        given: usize,
        /// Whether another take follows, without its policy or cost.
        incomplete: bool,
    },
    /// A number that is invalid or out of bounds.
    #[error("ERR invalid {argument} `{value}`: expected a whole number{unit} from {min} to {max}")]
    Number {
        /// Name of the argument.
        argument: &'static str,
        /// The argument, shortened and made printable.
        value: String,
        /// What it counts, as ` of microseconds`; empty for units.
        unit: &'static str,
        /// Lower bound.
        min: u64,
        /// Upper bound.
        max: u64,
    },
    /// A key that is too long, or empty.
    #[error("ERR {0}")]
    Key(KeyLengthError),
    /// An unknown option.
    #[error("ERR unknown option `{option}` for {command}: {expected}")]
    UnknownOption {
        /// The command, in upper case.
        command: &'static str,
        /// The argument, shortened and made printable.
        option: String,
        /// What is expected, or a similar name.
        expected: String,
    },
    /// An option given twice.
    #[error("ERR duplicate option {0}: expected it once")]
    RepeatedOption(&'static str),
    /// A command without an option that it needs.
    #[error("ERR missing option of {command}: expected {option}")]
    MissingOption {
        /// The command.
        command: &'static str,
        /// The option, with its value.
        option: &'static str,
    },
    /// An option without its value.
    #[error("ERR option {0} has no value: expected {0} and {value}", value = expected_value(.0))]
    MissingValue(&'static str),
    /// `AT` on a server without `--test-clock`.
    #[error("ERR option AT is unavailable: the server runs without --test-clock")]
    NoTestClock,
    /// `AT` for `SG.WAIT`.
    #[error("ERR option AT is unavailable: a request waits by the clock of the server")]
    NoTestClockToWait,
    /// A burst in `CL.THROTTLE` that takes too long to recover.
    #[error(
        "ERR invalid max_burst `{max_burst}` with count `{count}` and period `{period}`: expected one \
         that recovers within 35 years; use a smaller max_burst"
    )]
    Drain {
        /// As given.
        max_burst: u64,
        /// As given.
        count: u64,
        /// As given, in seconds.
        period: u64,
    },
    /// An invalid policy.
    #[error("SGPOLICY {0}")]
    Policy(#[from] PolicyError),
    /// An unknown name of a policy.
    #[error("SGPOLICY unknown policy `@{name}`: {expected}")]
    NoPolicy {
        /// The name, shortened and made printable.
        name: String,
        /// What is expected, or a similar name.
        expected: String,
    },
    /// The name of a policy without its `@`.
    #[error("SGPOLICY unknown policy `{0}`: did you mean `@{0}`?")]
    NameWithoutAt(String),
    /// A name of a policy where no rules are loaded. Holds the name, shortened and made printable.
    #[error(
        "SGPOLICY unknown policy `@{0}`: only a Sluicegate server with rules knows names; expected a \
         policy such as `gcra:30/1m`"
    )]
    NoRules(String),
    /// A policy that is not UTF-8. Holds the offset of the first invalid byte.
    #[error("SGPOLICY invalid policy: byte {0} is not UTF-8; expected ASCII such as `gcra:30/1m`")]
    PolicyEncoding(usize),
    /// An operation that is invalid, or that the policy does not support.
    #[error("ERR {0}")]
    Operation(#[from] OperationError),
    /// A `TTL` without the `ID` of a hold.
    #[error("ERR option TTL has no ID: expected ID and the id of a hold with it")]
    TtlWithoutId,
    /// The key holds an invalid state.
    #[error("SGSTATE key `{key}` holds {error}")]
    State {
        /// The key, shortened and made printable.
        key: String,
        /// Why it is invalid.
        error: StateError,
    },
    /// The key holds state of redis-cell, and its policy is unknown. Holds the key,
    /// shortened and made printable.
    #[error(
        "SGSTATE key `{0}` holds state of redis-cell; use a policy with a limit of the gcra family to \
         take it over"
    )]
    RedisCell(String),
    /// The key holds another type: other programs use the store too. Holds the key, shortened
    /// and made printable.
    #[error("WRONGTYPE key `{0}` does not hold a string, so Sluicegate did not write it")]
    WrongType(String),
}

impl CommandError {
    /// The error for a `key` that holds an invalid state.
    #[must_use]
    pub fn state(key: &[u8], error: StateError) -> Self {
        Self::State { key: quote(key), error }
    }

    /// The error for a `key` that holds the state of redis-cell.
    #[must_use]
    pub fn redis_cell(key: &[u8]) -> Self {
        Self::RedisCell(quote(key))
    }

    /// The error for a `key` that holds another type.
    #[must_use]
    pub fn wrong_type(key: &[u8]) -> Self {
        Self::WrongType(quote(key))
    }

    /// The error for an unknown name of a policy; `similar` is an existing one.
    #[must_use]
    pub fn no_policy(name: &[u8], similar: Option<&str>) -> Self {
        let expected = match similar {
            Some(similar) => format!("did you mean `@{similar}`?"),
            None => {
                "expected a name from the server's rules, or a policy such as `gcra:30/1m`".into()
            }
        };
        Self::NoPolicy { name: quote(name), expected }
    }
}

/// What is expected after an option.
fn expected_value(option: &str) -> String {
    match option {
        "ID" => "an id, such as `ID call-7`".to_owned(),
        _ => format!("a whole number, such as `{option} 5`"),
    }
}

// Texts of foreign errors, for use in errors of Sluicegate.

/// The text of a foreign error without its OS error number, on one line, and in lower case.
///
/// ```
/// use sluicegate_commands::plain_error;
///
/// let error = "No such file or directory (os error 2)";
/// assert_eq!(plain_error(&error), "no such file or directory");
/// ```
#[must_use]
pub fn plain_error(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once(" (os error ") {
        plain.push_str(before);
        rest = behind.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let plain = plain.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let mut chars = plain.chars();
    match (chars.next(), chars.as_str()) {
        // Acronyms stay: `TLS`, `I/O`.
        (Some(first), rest)
            if rest.starts_with(|next: char| next.is_lowercase() || next == ' ') =>
        {
            first.to_lowercase().chain(rest.chars()).collect()
        }
        _ => plain,
    }
}

/// Bytes of an argument that an error quotes.
const MAX_QUOTED: usize = 40;

/// `bytes` as an error quotes them: printable ASCII, cut after 40 bytes.
///
/// ```
/// assert_eq!(sluicegate_commands::quote(b"it's\r\n\xff"), r"it's\r\n\xff");
/// assert_eq!(sluicegate_commands::quote(&[b'x'; 41]), "x".repeat(40) + "...");
/// ```
#[must_use]
pub fn quote(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in &bytes[..bytes.len().min(MAX_QUOTED)] {
        match byte {
            b'\'' | b'"' => text.push(char::from(*byte)),
            other => text.extend(other.escape_ascii().map(char::from)),
        }
    }
    if bytes.len() > MAX_QUOTED {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests_of_plain {
    use super::*;

    #[test]
    fn plain_error_foreign_texts_are_normalised() {
        for (text, expected) in [
            ("Connection refused (os error 111)", "connection refused"),
            ("x: Permission denied (os error 13); y", "x: Permission denied; y"),
            ("I/O error", "I/O error"),
            ("two\n  lines", "two lines"),
            ("", ""),
        ] {
            assert_eq!(plain_error(&text), expected);
        }
    }
}
