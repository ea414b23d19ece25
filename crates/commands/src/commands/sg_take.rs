//! `SG.TAKE key policy [COST cost] [AT us]`: takes units, all of them or none.

use sluicegate_core::Operation;

use crate::{
    CommandError, DecisionFormat, PolicyText,
    arguments::{KeyArgument, OptionName, OptionReader},
    host::{Command, Host},
    spec::{COST, CommandSpec, FAST_WRITE, GROUP, KEY, Keys, POLICY},
};

/// `SG.TAKE`.
pub(crate) struct SgTake;

impl Command for SgTake {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.TAKE",
        arity: -3,
        flags: FAST_WRITE,
        keys: Keys::First,
        summary: "Takes units under a policy: all of them or none.",
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
        let operation = Operation::Take(given.cost_or_one());
        host.apply(key, policy, operation, given.at, DecisionFormat::Sluicegate)
    }
}
