//! `SG.MTAKE n key policy [COST] cost [key policy [COST] cost ...] [AT us]`: takes from several keys, independently.

use sluicegate_core::Operation;

use crate::{
    CommandError,
    arguments::{
        GivenOptions, KeyArgument,
        OptionName::{self, At},
        is_unknown_option, number, parse_options, units,
    },
    command::{Action, Command, Host, KeyOperation, Parsed, policy_of},
    spec::{
        Argument, ArgumentKind, CommandSpec, KEY, Keys, MAX_INDEPENDENT_TAKES, ONE_KEY, POLICY,
        is_cost,
    },
};

/// `SG.MTAKE`.
pub(crate) struct SgMtake;

/// One or more takes.
pub(crate) const TAKES: Argument = Argument::repeated(
    "take",
    &[KEY, POLICY, Argument::word("COST"), Argument::new("cost", ArgumentKind::Integer)],
);

/// The arguments of one take, unchecked.
struct RawTake<'a> {
    key: &'a [u8],
    /// Index of the key among the arguments of the command.
    index: usize,
    policy: &'a [u8],
    cost: &'a [u8],
}

impl Command for SgMtake {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.MTAKE",
        arity: -5,
        flags: &["write", "denyoom", "movablekeys"],
        keys: Keys::Counted,
        summary: "Takes from several keys, independently of each other.",
        arguments: &[Argument::new("n", ArgumentKind::Integer), TAKES],
        ..ONE_KEY
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        let (operations, given) =
            parse_takes(host, arguments, Self::SPEC, &[At], MAX_INDEPENDENT_TAKES)?;
        Ok(Action::ApplyMany { operations, at: given.at })
    }
}

/// The takes and options.
type Takes<'a, P> = (Vec<KeyOperation<'a, P>>, GivenOptions<'a>);

/// Parses the arguments `n key policy [COST] cost [key policy [COST] cost ...]` and options; `n` is at most `most`.
pub(crate) fn parse_takes<'a, H: Host<'a>>(
    host: &mut H,
    arguments: &[&'a [u8]],
    spec: &'static CommandSpec,
    known: &'static [OptionName],
    most: usize,
) -> Result<Takes<'a, H::Policy>, CommandError> {
    let (count, rest) = match arguments {
        [_, count, rest @ ..] if rest.len() >= 3 => (count, rest),
        _ => return Err(CommandError::Arity(spec)),
    };
    let count = number("n", count, 1, most as u64)?;
    let count = usize::try_from(count).expect("`number` checks the bounds");
    // The count is checked first, because with a wrong one every later error would be misleading.
    let (raw_takes, options) = split_takes(spec, count, rest)?;
    let allowed = host.options();
    if options.len() >= 3 && is_unknown_option(spec, known, allowed, options[0]) {
        let (more, incomplete) = (options.len() / 3, !options.len().is_multiple_of(3));
        return Err(wrong_count(spec, count, count + more, incomplete));
    }
    let given = parse_options(spec, known, allowed, options)?;
    let mut takes = Vec::with_capacity(raw_takes.len());
    for RawTake { key, index, policy, cost } in raw_takes {
        takes.push(KeyOperation {
            key: KeyArgument::new(key, index)?,
            policy: policy_of(host, key, policy)?,
            operation: Operation::Take(units("cost", cost, 0)?),
        });
    }
    Ok((takes, given))
}

/// The first `count` takes among `arguments`, which follow the count, and the arguments after them.
fn split_takes<'r, 'a>(
    spec: &'static CommandSpec,
    count: usize,
    arguments: &'r [&'a [u8]],
) -> Result<(Vec<RawTake<'a>>, &'r [&'a [u8]]), CommandError> {
    let mut takes = Vec::with_capacity(count.min(arguments.len() / 3));
    let mut rest = arguments;
    while takes.len() < count {
        let index = 2 + arguments.len() - rest.len();
        let (key, policy, cost);
        (key, policy, cost, rest) = match *rest {
            [key, policy, word, cost, ref rest @ ..] if is_cost(word) => (key, policy, cost, rest),
            [key, policy, cost, ref rest @ ..] => (key, policy, cost, rest),
            _ => return Err(wrong_count(spec, count, takes.len(), !rest.is_empty())),
        };
        takes.push(RawTake { key, index, policy, cost });
    }
    Ok((takes, rest))
}

fn wrong_count(
    spec: &'static CommandSpec,
    announced: usize,
    given: usize,
    incomplete: bool,
) -> CommandError {
    CommandError::TakeCount { spec, announced, given, incomplete }
}
