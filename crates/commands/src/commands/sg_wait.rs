//! `SG.WAIT key policy [COST cost] [TIMEOUT us]`: takes units once they fit.

use sluicegate_core::Operation;

use crate::{
    CommandError,
    arguments::{
        KeyArgument,
        OptionName::{Cost, Timeout},
        parse_options,
    },
    command::{Action, Command, Host, KeyOperation, Parsed, policy_of},
    spec::{Argument, COST, CommandSpec, DECISION, DEFAULT_TIMEOUT, KEY, POLICY},
};

/// `SG.WAIT`.
pub(crate) struct SgWait;

impl Command for SgWait {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.WAIT",
        flags: &["write", "denyoom", "blocking"],
        summary: "Takes units, and replies when they fit or when the timeout is sure to be missed.",
        arguments: &[KEY, POLICY, COST, Argument::option("TIMEOUT", "microseconds")],
        ..DECISION
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        let [_, key, policy, options @ ..] = arguments else {
            return Err(CommandError::Arity(Self::SPEC));
        };
        let given = parse_options(Self::SPEC, &[Cost, Timeout], host.options(), options)?;
        let take = KeyOperation {
            key: KeyArgument::new(key, 1)?,
            policy: policy_of(host, key, policy)?,
            operation: Operation::Take(given.cost()),
        };
        let timeout = given.timeout.unwrap_or(DEFAULT_TIMEOUT);
        Ok(Action::Wait { operations: vec![take], repeated: None, timeout })
    }
}
