//! Arguments of commands: keys, numbers and options.

use std::time::Duration;

use sluicegate_core::{KeyLengthError, Timestamp, any_of, closest};

use crate::{
    CommandError,
    error::quote,
    spec::{CommandSpec, MAX_SPAN, decimal},
};

/// Arguments that a host allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostOptions {
    /// Whether a command may set its time (`AT us`). Only for tests and simulations.
    pub test_clock: bool,
}

/// A key, and where it is among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyArgument<'a> {
    /// The key: up to 65 536 bytes.
    pub bytes: &'a [u8],
    /// Index among the arguments; the name of the command has index 0.
    pub index: usize,
}

impl<'a> KeyArgument<'a> {
    /// Checks the key of an operation that takes units, as [`key`] does.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], index: usize) -> Result<Self, CommandError> {
        Ok(Self { bytes: key(bytes)?, index })
    }

    /// Checks a key that may be empty: redis-cell allows that, therefore it can be read and reset.
    #[inline]
    pub(crate) fn new_or_empty(bytes: &'a [u8], index: usize) -> Result<Self, CommandError> {
        KeyLengthError::check_or_empty(bytes.len()).map_err(CommandError::Key)?;
        Ok(Self { bytes, index })
    }
}

/// Checks a key of an operation on units: 1 to 65 536 bytes.
///
/// # Errors
/// [`CommandError::Key`] for any other length.
#[inline]
pub fn key(bytes: &[u8]) -> Result<&[u8], CommandError> {
    KeyLengthError::check(bytes.len()).map_err(CommandError::Key)?;
    Ok(bytes)
}

/// A whole number of `min..=max`, in plain decimal digits.
pub(crate) fn number(
    argument: &'static str,
    text: &[u8],
    min: u64,
    max: u64,
) -> Result<u64, CommandError> {
    span(argument, text, "", min, max)
}

/// A whole number of `min..=max`; `unit` names what it counts, such as ` of seconds`.
pub(crate) fn span(
    argument: &'static str,
    text: &[u8],
    unit: &'static str,
    min: u64,
    max: u64,
) -> Result<u64, CommandError> {
    let error = || CommandError::Number { argument, value: quote(text), unit, min, max };
    decimal(text).filter(|number| (min..=max).contains(number)).ok_or_else(error)
}

/// A whole number of `min..=u32::MAX`.
pub(crate) fn units(argument: &'static str, text: &[u8], min: u32) -> Result<u32, CommandError> {
    let units = number(argument, text, min.into(), u32::MAX.into())?;
    Ok(u32::try_from(units).expect("`number` checks the bounds"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionName {
    Cost,
    MaxWait,
    Timeout,
    Ttl,
    Used,
    Id,
    At,
}

impl OptionName {
    const ALL: [Self; 7] =
        [Self::Cost, Self::MaxWait, Self::Timeout, Self::Ttl, Self::Used, Self::Id, Self::At];

    const fn name(self) -> &'static str {
        match self {
            Self::Cost => "COST",
            Self::MaxWait => "MAXWAIT",
            Self::Timeout => "TIMEOUT",
            Self::Ttl => "TTL",
            Self::Used => "USED",
            Self::Id => "ID",
            Self::At => "AT",
        }
    }
}

/// The options of a command that are given.
#[derive(Default)]
pub(crate) struct GivenOptions<'a> {
    pub(crate) cost: Option<u32>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) used: Option<u32>,
    pub(crate) id: Option<&'a [u8]>,
    pub(crate) at: Option<Timestamp>,
}

/// The options that a command has.
struct OptionReader {
    command: &'static str,
    known: &'static [OptionName],
    allowed: HostOptions,
}

impl GivenOptions<'_> {
    /// Units of the request: `COST`, or 1.
    pub(crate) fn cost(&self) -> u32 {
        self.cost.unwrap_or(1)
    }

    /// How long the request waits: `TIMEOUT`, unless that is 0.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, CommandError> {
        if self.timeout.is_some() && self.at.is_some() {
            return Err(CommandError::NoTestClockToWait);
        }
        Ok(self.timeout.filter(|it| !it.is_zero()))
    }
}

/// Parses options in any order, each at most once. The command has those in `known`, as far as the host allows.
#[inline]
pub(crate) fn parse_options<'a>(
    spec: &'static CommandSpec,
    known: &'static [OptionName],
    allowed: HostOptions,
    mut rest: &[&'a [u8]],
) -> Result<GivenOptions<'a>, CommandError> {
    let reader = OptionReader { command: spec.name, known, allowed };
    let mut given = GivenOptions::default();
    while let [name, values @ ..] = rest {
        let option = reader.name(name)?;
        let [value, after @ ..] = values else {
            return Err(CommandError::MissingValue(option.name()));
        };
        let repeated = match option {
            OptionName::Cost => given.cost.replace(units("COST", value, 0)?).is_some(),
            OptionName::MaxWait => given.max_wait.replace(duration("MAXWAIT", value)?).is_some(),
            OptionName::Timeout => given.timeout.replace(duration("TIMEOUT", value)?).is_some(),
            OptionName::Ttl => given.ttl.replace(duration("TTL", value)?).is_some(),
            OptionName::Used => given.used.replace(units("USED", value, 0)?).is_some(),
            OptionName::Id => given.id.replace(value).is_some(),
            OptionName::At => given.at.replace(time(value)?).is_some(),
        };
        if repeated {
            return Err(CommandError::RepeatedOption(option.name()));
        }
        rest = after;
    }
    Ok(given)
}

/// Whether the command has no option called `name`.
pub(crate) fn is_unknown_option(
    spec: &'static CommandSpec,
    known: &'static [OptionName],
    allowed: HostOptions,
    name: &[u8],
) -> bool {
    OptionReader { command: spec.name, known, allowed }.name(name).is_err()
}

impl OptionReader {
    fn name(&self, name: &[u8]) -> Result<OptionName, CommandError> {
        let option = OptionName::ALL
            .into_iter()
            .find(|option| name.eq_ignore_ascii_case(option.name().as_bytes()));
        match option {
            Some(OptionName::At) if !self.known.contains(&OptionName::At) => {
                Err(CommandError::NoTestClockToWait)
            }
            Some(OptionName::At) if !self.allowed.test_clock => Err(CommandError::NoTestClock),
            Some(option) if self.known.contains(&option) => Ok(option),
            Some(_) | None => Err(CommandError::UnknownOption {
                command: self.command,
                option: quote(name),
                expected: self.expected(name),
            }),
        }
    }

    /// What the error expects instead of `option`, which the command does not have.
    fn expected(&self, option: &[u8]) -> String {
        let known = self
            .known
            .iter()
            .filter(|&&option| option != OptionName::At || self.allowed.test_clock);
        let names: Vec<_> = known.map(|option| option.name()).collect();
        if let Some(name) = closest(&String::from_utf8_lossy(option), &names) {
            return format!("did you mean `{name}`?");
        }
        if self.known.contains(&OptionName::Cost) && units("COST", option, 0).is_ok() {
            return format!("did you mean `COST {}`?", quote(option));
        }
        let names = if names.is_empty() { "none".to_owned() } else { any_of(&names) };
        format!("expected {names}")
    }
}

const MICROSECONDS: &str = " of microseconds";

fn duration(argument: &'static str, text: &[u8]) -> Result<Duration, CommandError> {
    span(argument, text, MICROSECONDS, 0, MAX_SPAN).map(Duration::from_micros)
}

fn time(text: &[u8]) -> Result<Timestamp, CommandError> {
    let micros = span("AT", text, MICROSECONDS, 0, Timestamp::MAX.as_micros());
    micros.map(Timestamp::saturating_from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_bounds_are_inclusive() {
        for (text, fits) in [("1", false), ("2", true), ("4", true), ("5", false)] {
            assert_eq!(number("count", text.as_bytes(), 2, 4).is_ok(), fits, "{text}");
        }
        assert_eq!(units("count", b"4294967295", 0), Ok(u32::MAX));
        assert!(units("count", b"4294967296", 0).is_err());
    }
}
