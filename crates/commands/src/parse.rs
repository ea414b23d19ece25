//! Parses the arguments of a command.

use std::time::Duration;

use sluicegate_core::{Operation, Timestamp, closest};

use crate::{
    CommandError, PolicyText,
    argument::{any_key, key, number, span, units},
    limits::{DEFAULT_TIMEOUT, MAX_MANY, MAX_SPAN},
    request::{Options, Request, Take},
    table::{COMMAND_KINDS, COMMANDS, CommandKind, is_cost, position},
    text::quote,
    throttle,
};

/// Parses `arguments`, which start with the name of the command, in any case.
///
/// # Errors
/// [`CommandError`], whose text is the whole error reply.
pub fn parse<'a>(arguments: &[&'a [u8]], options: Options) -> Result<Request<'a>, CommandError> {
    let name = arguments.first().copied().unwrap_or_default();
    let Some(index) = position(name) else {
        let rest = arguments.get(1..).unwrap_or_default();
        return Err(CommandError::unknown_command(name, rest));
    };
    parse_at(index, arguments, options, PolicyText::parse)
}

/// Parses `arguments` for the command at `index` of [`COMMANDS`]; `resolve` maps a policy text to the
/// caller's handle. Apart from `resolve`, only `SG.MTAKE` allocates.
///
/// # Errors
/// [`CommandError`], whose text is the whole error reply, or the error of `resolve`.
#[inline]
pub fn parse_at<'a, P>(
    index: usize,
    arguments: &[&'a [u8]],
    options: Options,
    mut resolve: impl FnMut(PolicyText<'a>) -> Result<P, CommandError>,
) -> Result<Request<'a, P>, CommandError> {
    let (Some(command), Some(&kind), [_, rest @ ..]) =
        (COMMANDS.get(index), COMMAND_KINDS.get(index), arguments)
    else {
        return Err(CommandError::unknown_command(b"", &[]));
    };
    if !command.takes(arguments.len()) {
        return Err(CommandError::arity(command.name));
    }
    let reader = |known| OptionReader { command: command.name, known, options };
    match (kind, rest) {
        (CommandKind::Throttle, _) => throttle::parse(arguments, resolve),
        (CommandKind::Reset, [key_bytes, rest @ ..]) => {
            let given = reader(&[OptionName::At]).parse(rest)?;
            Ok(Request::Reset { key: any_key(key_bytes)?, at: given.at })
        }
        (CommandKind::Info, [key_bytes, rest @ ..]) => {
            let given = reader(&[OptionName::At]).parse(rest)?;
            Ok(Request::Info { key: any_key(key_bytes)?, at: given.at })
        }
        (CommandKind::TakeMany, [count, rest @ ..]) => {
            take_many(count, rest, &reader(&[OptionName::At]), resolve)
        }
        (CommandKind::Wait, [key_bytes, text, rest @ ..]) => {
            let given = reader(&[OptionName::Cost, OptionName::Timeout]).parse(rest)?;
            Ok(Request::Wait {
                key: key(key_bytes)?,
                policy: resolve(PolicyText::Text(text))?,
                cost: given.cost.unwrap_or(1),
                timeout: given.timeout.unwrap_or(DEFAULT_TIMEOUT),
            })
        }
        (kind, [key_bytes, text, rest @ ..]) => {
            let known: &[OptionName] = match kind {
                CommandKind::Reserve => &[OptionName::Cost, OptionName::MaxWait, OptionName::At],
                _ => &[OptionName::Cost, OptionName::At],
            };
            let given = reader(known).parse(rest)?;
            let cost = given.cost.unwrap_or(1);
            let operation = match kind {
                CommandKind::Take => Operation::Take(cost),
                CommandKind::Peek => Operation::Peek(cost),
                CommandKind::Charge => Operation::Charge(cost),
                CommandKind::Refund => Operation::Refund(cost),
                _ => {
                    let max_wait = given.max_wait.unwrap_or(Duration::from_micros(MAX_SPAN));
                    Operation::Reserve { cost, max_wait }
                }
            };
            Ok(Request::Decide {
                key: key(key_bytes)?,
                policy: resolve(PolicyText::Text(text))?,
                operation,
                at: given.at,
            })
        }
        _ => Err(CommandError::arity(command.name)),
    }
}

fn take_many<'a, P>(
    count: &[u8],
    mut rest: &[&'a [u8]],
    reader: &OptionReader,
    mut resolve: impl FnMut(PolicyText<'a>) -> Result<P, CommandError>,
) -> Result<Request<'a, P>, CommandError> {
    let count = number("n", count, 1, MAX_MANY as u64)?;
    let count = usize::try_from(count).unwrap_or(MAX_MANY); // `number` checks the bounds
    let all = rest;
    // The count is checked first, because with a wrong one every later error would be misleading.
    let mut takes = Vec::with_capacity(count.min(all.len() / 3));
    while takes.len() < count {
        let (key_bytes, text, cost);
        (key_bytes, text, cost, rest) = match *rest {
            [key, text, word, cost, ref rest @ ..] if is_cost(word) => (key, text, cost, rest),
            [key, text, cost, ref rest @ ..] => (key, text, cost, rest),
            _ => {
                let (given, incomplete) = (takes.len(), !rest.is_empty());
                return Err(CommandError::TakeCount { announced: count, given, incomplete });
            }
        };
        takes.push((key_bytes, text, cost));
    }
    if rest.len() >= 3 && reader.name(rest[0]).is_err() {
        let (given, incomplete) = (count + rest.len() / 3, !rest.len().is_multiple_of(3));
        return Err(CommandError::TakeCount { announced: count, given, incomplete });
    }
    let given = reader.parse(rest)?;
    let takes = takes.into_iter().map(|(key_bytes, text, cost)| {
        Ok(Take {
            key: key(key_bytes)?,
            policy: resolve(PolicyText::Text(text))?,
            cost: units("cost", cost, 0)?,
        })
    });
    Ok(Request::TakeMany { takes: takes.collect::<Result<_, CommandError>>()?, at: given.at })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionName {
    Cost,
    MaxWait,
    Timeout,
    At,
}

impl OptionName {
    const ALL: [Self; 4] = [Self::Cost, Self::MaxWait, Self::Timeout, Self::At];

    const fn name(self) -> &'static str {
        match self {
            Self::Cost => "COST",
            Self::MaxWait => "MAXWAIT",
            Self::Timeout => "TIMEOUT",
            Self::At => "AT",
        }
    }
}

/// The options of a request.
#[derive(Default)]
struct GivenOptions {
    cost: Option<u32>,
    max_wait: Option<Duration>,
    timeout: Option<Duration>,
    at: Option<Timestamp>,
}

/// Parses the options of a command, of which it has those in `known`.
struct OptionReader {
    command: &'static str,
    known: &'static [OptionName],
    options: Options,
}

impl OptionReader {
    /// Parses options in any order, each at most once.
    #[inline]
    fn parse(&self, mut rest: &[&[u8]]) -> Result<GivenOptions, CommandError> {
        let mut given = GivenOptions::default();
        while let [name, values @ ..] = rest {
            let option = self.name(name)?;
            let [value, after @ ..] = values else {
                return Err(CommandError::MissingValue(option.name()));
            };
            let repeated = match option {
                OptionName::Cost => given.cost.replace(units("COST", value, 0)?).is_some(),
                OptionName::MaxWait => {
                    given.max_wait.replace(duration("MAXWAIT", value)?).is_some()
                }
                OptionName::Timeout => given.timeout.replace(duration("TIMEOUT", value)?).is_some(),
                OptionName::At => given.at.replace(time(value)?).is_some(),
            };
            if repeated {
                return Err(CommandError::RepeatedOption(option.name()));
            }
            rest = after;
        }
        Ok(given)
    }

    fn name(&self, name: &[u8]) -> Result<OptionName, CommandError> {
        let option = OptionName::ALL
            .into_iter()
            .find(|option| name.eq_ignore_ascii_case(option.name().as_bytes()));
        match option {
            Some(OptionName::At) if !self.known.contains(&OptionName::At) => {
                Err(CommandError::NoTestClockToWait)
            }
            Some(OptionName::At) if !self.options.test_clock => Err(CommandError::NoTestClock),
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
            .filter(|&&option| option != OptionName::At || self.options.test_clock);
        let names: Vec<_> = known.map(|option| option.name()).collect();
        if let Some(name) = closest(&String::from_utf8_lossy(option), &names) {
            return format!("did you mean `{name}`?");
        }
        if self.known.contains(&OptionName::Cost) && units("COST", option, 0).is_ok() {
            return format!("did you mean `COST {}`?", quote(option));
        }
        match *names.as_slice() {
            [] => "expected none".to_owned(),
            [one] => format!("expected {one}"),
            [ref first @ .., last] => format!("expected {} or {last}", first.join(", ")),
        }
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
mod errors;
#[cfg(test)]
mod tests;
