//! `SG.RESERVE key policy [COST cost] [MAXWAIT us] [AT us]`: takes units for use after the returned delay.

use std::time::Duration;

use sluicegate_core::Operation;

use crate::{
    CommandError, DecisionFormat, PolicyText,
    arguments::{KeyArgument, OptionName, OptionReader},
    host::{Command, Host},
    limits::MAX_SPAN,
    spec::{Argument, COST, CommandSpec, FAST_WRITE, GROUP, KEY, Keys, POLICY},
};

/// `SG.RESERVE`.
pub(crate) struct SgReserve;

impl Command for SgReserve {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.RESERVE",
        arity: -3,
        flags: FAST_WRITE,
        keys: Keys::First,
        summary: "Takes units now, for use after the returned delay.",
        group: GROUP,
        arguments: &[KEY, POLICY, COST, Argument::option("MAXWAIT", "microseconds")],
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
            known: &[OptionName::Cost, OptionName::MaxWait, OptionName::At],
            allowed: host.options(),
        }
        .parse(options)?;
        let key = KeyArgument::new(key, 1)?;
        let policy = host.policy(PolicyText::Text(policy))?;
        let max_wait = given.max_wait.unwrap_or(Duration::from_micros(MAX_SPAN));
        let operation = Operation::Reserve { cost: given.cost_or_one(), max_wait };
        host.apply(key, policy, operation, given.at, DecisionFormat::Sluicegate)
    }
}
