//! `SG.WAIT key policy [COST cost] [TIMEOUT us]`: takes units once they fit.

use crate::{
    CommandError, PolicyText,
    arguments::{KeyArgument, OptionName, OptionReader},
    host::{Command, Host, TakeRequest},
    limits::DEFAULT_TIMEOUT,
    spec::{Argument, COST, CommandSpec, GROUP, KEY, Keys, POLICY},
};

/// `SG.WAIT`.
pub(crate) struct SgWait;

impl Command for SgWait {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.WAIT",
        arity: -3,
        flags: &["write", "denyoom", "blocking"],
        keys: Keys::First,
        summary: "Takes units, and replies when they fit or when the timeout is sure to be missed.",
        group: GROUP,
        arguments: &[KEY, POLICY, COST, Argument::option("TIMEOUT", "microseconds")],
    };

    fn run<'a, H: Host<'a>>(
        host: &mut H,
        arguments: &[&'a [u8]],
    ) -> Result<H::Outcome, CommandError> {
        let [_, key, policy, options @ ..] = arguments else {
            return Err(CommandError::Arity(Self::SPEC));
        };
        let given = OptionReader {
            command: Self::SPEC.name,
            known: &[OptionName::Cost, OptionName::Timeout],
            allowed: host.options(),
        }
        .parse(options)?;
        let key = KeyArgument::new(key, 1)?;
        let policy = host.policy(PolicyText::Text(policy))?;
        let take = TakeRequest { key, policy, cost: given.cost_or_one() };
        host.wait(take, given.timeout.unwrap_or(DEFAULT_TIMEOUT))
    }
}
