//! `SG.RESET key [AT us]`: resets a key.

use crate::{
    CommandError,
    arguments::{KeyArgument, OptionName, OptionReader},
    host::{Command, Host},
    spec::{CommandSpec, GROUP, KEY, Keys},
};

/// `SG.RESET`.
pub(crate) struct SgReset;

impl Command for SgReset {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.RESET",
        arity: -2,
        flags: &["write", "fast"],
        keys: Keys::First,
        summary: "Resets a key.",
        group: GROUP,
        arguments: &[KEY],
    };

    fn run<'a, H: Host<'a>>(
        host: &mut H,
        arguments: &[&'a [u8]],
    ) -> Result<H::Outcome, CommandError> {
        let [_, key, options @ ..] = arguments else {
            return Err(CommandError::Arity(Self::SPEC));
        };
        let given = OptionReader {
            command: Self::SPEC.name,
            known: &[OptionName::At],
            allowed: host.options(),
        }
        .parse(options)?;
        host.reset(KeyArgument::new_or_empty(key, 1)?, given.at)
    }
}
