//! `SG.PEEK key policy [COST cost] [AT us]`: returns what `SG.TAKE` would, and stores nothing.

use sluicegate_core::Operation;

use crate::{
    CommandError, DecisionFormat, PolicyText,
    arguments::{KeyArgument, OptionName, OptionReader},
    host::{Command, Host},
    spec::{COST, CommandSpec, FAST_READ, GROUP, KEY, Keys, POLICY},
};

/// `SG.PEEK`.
pub(crate) struct SgPeek;

impl Command for SgPeek {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.PEEK",
        arity: -3,
        flags: FAST_READ,
        keys: Keys::First,
        summary: "Returns what SG.TAKE would, and stores nothing.",
        group: GROUP,
        arguments: &[KEY, POLICY, COST],
    };

    #[inline]
    fn run<'a, H: Host<'a>>(
        host: &mut H,
        arguments: &[&'a [u8]],
    ) -> Result<H::Outcome, CommandError> {
        let [_, key, policy, options @ ..] = arguments else {
            return Err(CommandError::Arity(Self::SPEC));
        };
        let given = OptionReader {
            command: Self::SPEC.name,
            known: &[OptionName::Cost, OptionName::At],
            allowed: host.options(),
        }
        .parse(options)?;
        let key = KeyArgument::new(key, 1)?;
        let policy = host.policy(PolicyText::Text(policy))?;
        let operation = Operation::Peek(given.cost_or_one());
        host.apply(key, policy, operation, given.at, DecisionFormat::Sluicegate)
    }
}
