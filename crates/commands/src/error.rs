//! Errors of commands, in the words that every protocol replies with.

use std::fmt;

use sluicegate_core::{PolicyError, ReserveError, StateError, closest};

use crate::{
    argument::{MAX_KEY, shown},
    table::{COMMANDS, find},
};

/// A command that cannot be carried out. Its text is the whole error reply, the class word first:
/// `ERR` for arguments, `SGPOLICY` for a policy, `SGSTATE` for a state that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The name of no command, with the first arguments, each shown and quoted.
    #[error(
        "ERR unknown command '{name}', with args beginning with: {arguments}{}",
        SimilarCommand(name)
    )]
    UnknownCommand {
        /// The name, as given but made printable.
        name: String,
        /// The first arguments, each in quotes and followed by a space.
        arguments: String,
    },
    /// Too few arguments, or too many. Holds the name of the command in lower case.
    #[error("ERR wrong number of arguments for '{0}' command{syntax}", syntax = Syntax(.0))]
    Arity(String),
    /// `SG.MTAKE` with more or fewer takes than its `n` says.
    #[error(
        "ERR wrong number of arguments for 'sg.mtake' command; {announced} announced and {given} given{}{}",
        if *.incomplete { " (the last one is incomplete)" } else { "" },
        Syntax("sg.mtake")
    )]
    TakeCount {
        /// What `n` says.
        announced: usize,
        /// Takes that are complete.
        given: usize,
        /// Whether there is one more, without its policy or cost.
        incomplete: bool,
    },
    /// An invalid number, or one that is out of bounds.
    #[error(
        "ERR invalid {argument} `{value}`: expected a whole number{unit} from {least} to {most}"
    )]
    Number {
        /// Which argument.
        argument: &'static str,
        /// What was given, shortened and made printable.
        value: String,
        /// What it counts, as ` of microseconds`; empty for units.
        unit: &'static str,
        /// Lower bound.
        least: u64,
        /// Upper bound.
        most: u64,
    },
    /// A key that is too long, or empty. Holds its length in bytes.
    #[error("ERR invalid key: expected 1 to {MAX_KEY} bytes, found {0}")]
    Key(usize),
    /// A word that is not an option of the command.
    #[error("ERR unknown option `{option}` for {command}: {expected}")]
    UnknownOption {
        /// The command, in upper case.
        command: &'static str,
        /// What was given, shortened and made printable.
        option: String,
        /// What is expected or was probably meant.
        expected: String,
    },
    /// An option given twice.
    #[error("ERR duplicate option {0}: expected it once")]
    RepeatedOption(&'static str),
    /// An option without its value.
    #[error("ERR option {0} has no value: expected {0} and a whole number, such as `{0} 5`")]
    MissingValue(&'static str),
    /// `AT` on a server that keeps its own time.
    #[error("ERR option AT is unavailable: the server runs without --test-clock")]
    NoTestClock,
    /// `AT` for a command that waits by the clock of the server.
    #[error("ERR option AT is unavailable: SG.WAIT waits by the clock of the server")]
    NoTestClockToWait,
    /// Parameters of `CL.THROTTLE` that make a burst which takes too long to recover.
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
    /// The name of no policy.
    #[error("SGPOLICY unknown policy `@{name}`: {expected}")]
    NoPolicy {
        /// The name, shortened and made printable.
        name: String,
        /// What is expected or was probably meant.
        expected: String,
    },
    /// The name of a policy where no rules are loaded. Holds the name, shortened and made printable.
    #[error(
        "SGPOLICY unknown policy `@{0}`: only a Sluicegate server with rules knows names; expected a \
         policy such as `gcra:30/1m`"
    )]
    NoRules(String),
    /// A policy that is not UTF-8. Holds where it stops being that, in bytes.
    #[error("SGPOLICY invalid policy: byte {0} is not UTF-8; expected ASCII such as `gcra:30/1m`")]
    PolicyEncoding(usize),
    /// A policy that cannot be reserved from.
    #[error("ERR {0}")]
    Reserve(#[from] ReserveError),
    /// What the key holds is not a state that can be read.
    #[error("SGSTATE key `{key}` holds {error}")]
    State {
        /// The key, shortened and made printable.
        key: String,
        /// What it holds.
        error: StateError,
    },
    /// The key holds the state of redis-cell, and nothing says under which policy. Holds the key,
    /// shortened and made printable.
    #[error(
        "SGSTATE key `{0}` holds state of redis-cell; use a policy with a limit of the gcra family to \
         take it over"
    )]
    RedisCell(String),
    /// The key holds another type, in a store that other programs use too. Holds the key, shortened
    /// and made printable.
    #[error("WRONGTYPE key `{0}` does not hold a string, so Sluicegate did not write it")]
    WrongType(String),
}

/// How a command is called: `; expected SG.TAKE key policy [COST cost]`.
struct Syntax<'a>(&'a str);

impl fmt::Display for Syntax<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match find(self.0.as_bytes()) {
            Some(command) => write!(formatter, "; expected {}", command.syntax()),
            None => Ok(()),
        }
    }
}

/// The command that a wrong name probably means: `; did you mean 'SG.TAKE'?`.
struct SimilarCommand<'a>(&'a str);

impl fmt::Display for SimilarCommand<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = COMMANDS.iter().map(|command| command.name);
        let prefixed = format!("SG.{}", self.0);
        let known: Vec<_> = names.collect();
        let similar = known
            .iter()
            .find(|name| name.eq_ignore_ascii_case(&prefixed))
            .copied()
            .or_else(|| closest(self.0, &known));
        similar.map_or(Ok(()), |name| write!(formatter, "(did you mean '{name}'?)"))
    }
}

impl CommandError {
    /// The error for a `name` that no command has, called with `arguments`.
    #[must_use]
    pub fn unknown_command(name: &[u8], arguments: &[&[u8]]) -> Self {
        /// So much is quoted of the arguments in all.
        const QUOTED: usize = 128;
        let mut quoted = String::new();
        for argument in arguments {
            if quoted.len() >= QUOTED {
                break;
            }
            quoted.push('\'');
            quoted.push_str(&shown(argument));
            quoted.push_str("' ");
        }
        Self::UnknownCommand { name: shown(name), arguments: quoted }
    }

    /// The error for a `key` that holds something else than a state that can be read.
    #[must_use]
    pub fn state(key: &[u8], error: StateError) -> Self {
        Self::State { key: shown(key), error }
    }

    /// The error for a `key` that holds the state of redis-cell.
    #[must_use]
    pub fn redis_cell(key: &[u8]) -> Self {
        Self::RedisCell(shown(key))
    }

    /// The error for a `key` that holds another type.
    #[must_use]
    pub fn wrong_type(key: &[u8]) -> Self {
        Self::WrongType(shown(key))
    }

    /// The error for a name that no policy has; one is called `similar`.
    #[must_use]
    pub fn no_policy(name: &[u8], similar: Option<&str>) -> Self {
        let expected = match similar {
            Some(similar) => format!("did you mean `@{similar}`?"),
            None => {
                "expected a name from the server's rules, or a policy such as `gcra:30/1m`".into()
            }
        };
        Self::NoPolicy { name: shown(name), expected }
    }

    /// The error for a number of arguments that the command `name` does not take.
    #[must_use]
    pub fn arity(name: &str) -> Self {
        Self::Arity(name.to_ascii_lowercase())
    }
}
