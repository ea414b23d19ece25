//! A command's arguments as a request.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Timestamp, closest};

use crate::{
    CommandError, PolicyText,
    argument::{any_key, key, number, shown, span, units},
    table::{COMMANDS, VERBS, Verb, is_cost, position},
    throttle,
};

/// The longest span that an option can say, in microseconds: 2^50, 35 years. `SG.RESERVE` without
/// `MAXWAIT` means this: however long.
pub const MAX_SPAN: u64 = 1 << 50;

/// How long `SG.WAIT` waits at most when no `TIMEOUT` is given.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The most decisions of one `SG.MTAKE`.
pub const MAX_MANY: usize = 256;

/// What the face allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether a request may say what time it is (`AT us`). Only for tests and simulations.
    pub test_clock: bool,
}

/// What a command asks for. Keys are slices of its arguments; a policy is whatever was made of its
/// [`PolicyText`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Request<'a, P = Policy> {
    /// `CL.THROTTLE`: answered with [`throttle_integers`](crate::throttle_integers).
    Throttle {
        /// The key.
        key: &'a [u8],
        /// A single gcra limit.
        policy: P,
        /// A take, or a peek of nothing for a quantity of 0.
        operation: Operation,
    },
    /// `SG.TAKE`, `SG.PEEK`, `SG.CHARGE`, `SG.REFUND`, `SG.RESERVE`: answered with the seven
    /// integers of the decision.
    Decide {
        /// The key.
        key: &'a [u8],
        /// The policy that it is asked under.
        policy: P,
        /// What is asked.
        operation: Operation,
        /// When, if the request says so.
        at: Option<Timestamp>,
    },
    /// `SG.WAIT`: a take that is answered when it passes, or when `timeout` is sure to be missed.
    Wait {
        /// The key.
        key: &'a [u8],
        /// The policy that it is asked under.
        policy: P,
        /// Units asked for.
        cost: u32,
        /// The longest wait: 0 µs ..= 2^50 µs.
        timeout: Duration,
    },
    /// `SG.RESET`: answered with 1 if there was state, else 0.
    Reset {
        /// The key.
        key: &'a [u8],
        /// When, if the request says so.
        at: Option<Timestamp>,
    },
    /// `SG.INFO`: answered with a [`Description`](crate::Description), or null.
    Info {
        /// The key.
        key: &'a [u8],
        /// When, if the request says so.
        at: Option<Timestamp>,
    },
    /// `SG.MTAKE`: answered with an array of decisions, in order.
    TakeMany {
        /// 1..=256 takes, each for itself.
        takes: Vec<Take<'a, P>>,
        /// When, if the request says so.
        at: Option<Timestamp>,
    },
}

/// One of the takes of `SG.MTAKE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Take<'a, P = Policy> {
    /// The key.
    pub key: &'a [u8],
    /// The policy that it is asked under.
    pub policy: P,
    /// Units asked for.
    pub cost: u32,
}

/// The request that `arguments` say, the command's name first, in any case.
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

/// The request that `arguments` say, for who has found the command already, at `index` of
/// [`COMMANDS`], and knows policies by their texts: `resolve` makes of one what the request shall
/// hold. Beyond what `resolve` does, only `SG.MTAKE` allocates.
///
/// # Errors
/// [`CommandError`], whose text is the whole error reply; that of `resolve` where it fails.
#[inline]
pub fn parse_at<'a, P>(
    index: usize,
    arguments: &[&'a [u8]],
    options: Options,
    mut resolve: impl FnMut(PolicyText<'a>) -> Result<P, CommandError>,
) -> Result<Request<'a, P>, CommandError> {
    let (Some(command), Some(&verb), [_, rest @ ..]) =
        (COMMANDS.get(index), VERBS.get(index), arguments)
    else {
        return Err(CommandError::unknown_command(b"", &[]));
    };
    if !command.takes(arguments.len()) {
        return Err(CommandError::arity(command.name));
    }
    let words = |known| Words { command: command.name, known, options };
    match (verb, rest) {
        (Verb::Throttle, _) => throttle::parse(arguments, resolve),
        (Verb::Reset, [key_bytes, rest @ ..]) => {
            let given = words(&[Word::At]).parse(rest)?;
            Ok(Request::Reset { key: any_key(key_bytes)?, at: given.at })
        }
        (Verb::Info, [key_bytes, rest @ ..]) => {
            let given = words(&[Word::At]).parse(rest)?;
            Ok(Request::Info { key: any_key(key_bytes)?, at: given.at })
        }
        (Verb::TakeMany, [count, rest @ ..]) => {
            take_many(count, rest, &words(&[Word::At]), resolve)
        }
        (Verb::Wait, [key_bytes, text, rest @ ..]) => {
            let given = words(&[Word::Cost, Word::Timeout]).parse(rest)?;
            Ok(Request::Wait {
                key: key(key_bytes)?,
                policy: resolve(PolicyText::Text(text))?,
                cost: given.cost.unwrap_or(1),
                timeout: given.timeout.unwrap_or(DEFAULT_TIMEOUT),
            })
        }
        (verb, [key_bytes, text, rest @ ..]) => {
            let known: &[Word] = match verb {
                Verb::Reserve => &[Word::Cost, Word::MaxWait, Word::At],
                _ => &[Word::Cost, Word::At],
            };
            let given = words(known).parse(rest)?;
            let cost = given.cost.unwrap_or(1);
            let operation = match verb {
                Verb::Take => Operation::Take(cost),
                Verb::Peek => Operation::Peek(cost),
                Verb::Charge => Operation::Charge(cost),
                Verb::Refund => Operation::Refund(cost),
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
    words: &Words,
    mut resolve: impl FnMut(PolicyText<'a>) -> Result<P, CommandError>,
) -> Result<Request<'a, P>, CommandError> {
    let count = number("n", count, 1, MAX_MANY as u64)?;
    let count = usize::try_from(count).unwrap_or(MAX_MANY); // it was checked
    let all = rest;
    // That there are as many as announced is checked first, because all else would be misread.
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
    if rest.len() >= 3 && words.word(rest[0]).is_err() {
        let (given, incomplete) = (count + rest.len() / 3, !rest.len().is_multiple_of(3));
        return Err(CommandError::TakeCount { announced: count, given, incomplete });
    }
    let given = words.parse(rest)?;
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
enum Word {
    Cost,
    MaxWait,
    Timeout,
    At,
}

impl Word {
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

/// The options that were given.
#[derive(Default)]
struct Given {
    cost: Option<u32>,
    max_wait: Option<Duration>,
    timeout: Option<Duration>,
    at: Option<Timestamp>,
}

/// The options that a command knows.
struct Words {
    command: &'static str,
    known: &'static [Word],
    options: Options,
}

impl Words {
    /// Options in any order, each at most once.
    #[inline]
    fn parse(&self, mut rest: &[&[u8]]) -> Result<Given, CommandError> {
        let mut given = Given::default();
        while let [name, values @ ..] = rest {
            let word = self.word(name)?;
            let [value, after @ ..] = values else {
                return Err(CommandError::MissingValue(word.name()));
            };
            let repeated = match word {
                Word::Cost => given.cost.replace(units("COST", value, 0)?).is_some(),
                Word::MaxWait => given.max_wait.replace(duration("MAXWAIT", value)?).is_some(),
                Word::Timeout => given.timeout.replace(duration("TIMEOUT", value)?).is_some(),
                Word::At => given.at.replace(time(value)?).is_some(),
            };
            if repeated {
                return Err(CommandError::RepeatedOption(word.name()));
            }
            rest = after;
        }
        Ok(given)
    }

    fn word(&self, name: &[u8]) -> Result<Word, CommandError> {
        let word =
            Word::ALL.into_iter().find(|word| name.eq_ignore_ascii_case(word.name().as_bytes()));
        match word {
            Some(Word::At) if !self.known.contains(&Word::At) => {
                Err(CommandError::NoTestClockToWait)
            }
            Some(Word::At) if !self.options.test_clock => Err(CommandError::NoTestClock),
            Some(word) if self.known.contains(&word) => Ok(word),
            Some(_) | None => Err(CommandError::UnknownOption {
                command: self.command,
                option: shown(name),
                expected: self.expected(name),
            }),
        }
    }

    /// What is expected in place of `option`, which the command does not have.
    fn expected(&self, option: &[u8]) -> String {
        let known = self.known.iter().filter(|&&word| word != Word::At || self.options.test_clock);
        let names: Vec<_> = known.map(|word| word.name()).collect();
        if let Some(name) = closest(&String::from_utf8_lossy(option), &names) {
            return format!("did you mean `{name}`?");
        }
        if self.known.contains(&Word::Cost) && units("COST", option, 0).is_ok() {
            return format!("did you mean `COST {}`?", shown(option));
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
