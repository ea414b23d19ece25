//! What is wrong with a command, in the words that every face answers.

use sluicegate_core::{PolicyError, ReserveError, StateError};

use crate::argument::{MAX_KEY, shown};

/// A command that cannot be carried out. Its text is the whole error reply, the class word first:
/// `ERR` for arguments, `SGPOLICY` for a policy text, `SGSTATE` for a state that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// A name that no command has, with the first arguments, each shown and quoted.
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}")]
    UnknownCommand {
        /// The name, as given but made printable.
        name: String,
        /// The first arguments, each in quotes with a blank behind.
        arguments: String,
    },
    /// Too few arguments, or too many. Holds the name of the command in lower case.
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(String),
    /// A number that is none, or is out of bounds.
    #[error("ERR {argument} `{value}` is not a whole number of {least}..={most}")]
    Number {
        /// Which argument.
        argument: &'static str,
        /// What was given, shortened and made printable.
        value: String,
        /// The least that would do.
        least: u64,
        /// The most that would do.
        most: u64,
    },
    /// A key that is too long. Holds its length in bytes.
    #[error("ERR key has {0} bytes, which is outside 0..={MAX_KEY}")]
    Key(usize),
    /// A word that is no option of the command.
    #[error("ERR option `{option}` is unknown to {command}; {known}")]
    UnknownOption {
        /// The command, in upper case.
        command: &'static str,
        /// What was given, shortened and made printable.
        option: String,
        /// What would do, in words.
        known: String,
    },
    /// An option given twice.
    #[error("ERR option {0} is given twice; once would do")]
    RepeatedOption(&'static str),
    /// An option without its value.
    #[error("ERR option {0} has no value; {0} and a whole number would do")]
    MissingValue(&'static str),
    /// `AT` where the server tells the time.
    #[error("ERR option AT needs a server that runs with --test-clock; leaving it out would do")]
    NoTestClock,
    /// `AT` for a command that waits by the clock on the wall.
    #[error("ERR option AT is not for SG.WAIT, which waits by the server's own clock")]
    NoTestClockToWait,
    /// Parameters of `CL.THROTTLE` that make a burst which takes too long to come back.
    #[error(
        "ERR max_burst `{max_burst}` with count `{count}` and period `{period}` would take more \
         than 2^50us (35 years) to recover; a smaller max_burst would do"
    )]
    Drain {
        /// As given.
        max_burst: u64,
        /// As given.
        count: u64,
        /// As given, in seconds.
        period: u64,
    },
    /// A policy text that is none.
    #[error("SGPOLICY {0}")]
    Policy(#[from] PolicyError),
    /// A name that no policy has. Holds the name, shortened and made printable.
    #[error(
        "SGPOLICY no policy is named `{0}`; a name from the server's rules, or a text as \
         `gcra:30/1m`, would do"
    )]
    NoPolicy(String),
    /// A policy that is not even text. Holds where it stops being UTF-8, in bytes.
    #[error("SGPOLICY policy is not UTF-8 from byte {0} on; ASCII text would do, as `gcra:30/1m`")]
    PolicyEncoding(usize),
    /// A policy that cannot be reserved from.
    #[error("ERR {0}")]
    Reserve(#[from] ReserveError),
    /// What is stored of the key is unreadable.
    #[error("SGSTATE {0}")]
    State(#[from] StateError),
    /// What is stored of the key is that of redis-cell, and nothing says under which policy.
    #[error(
        "SGSTATE state is that of redis-cell; a policy with a limit of the gcra family would take \
         it over, and resetting the key would do"
    )]
    RedisCell,
    /// The key holds something else, in a store that others use too.
    #[error(
        "WRONGTYPE key holds no string, so no state of sluicegate; another key, or deleting this \
         one, would do"
    )]
    WrongType,
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

    /// The error for a name that no policy has.
    #[must_use]
    pub fn no_policy(name: &[u8]) -> Self {
        Self::NoPolicy(shown(name))
    }

    /// The error for a number of arguments that the command `name` does not take.
    #[must_use]
    pub fn arity(name: &str) -> Self {
        Self::Arity(name.to_ascii_lowercase())
    }
}
