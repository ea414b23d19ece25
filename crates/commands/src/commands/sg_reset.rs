//! `SG.RESET key [AT us]`: resets a key.

use crate::{
    CommandError,
    arguments::{KeyArgument, OptionName::At, parse_options},
    command::{Action, Command, Host, Parsed},
    spec::{CommandSpec, ONE_KEY},
};

/// `SG.RESET`.
pub(crate) struct SgReset;

impl Command for SgReset {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.RESET",
        flags: &["write", "fast"],
        summary: "Resets a key.",
        ..ONE_KEY
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        let [_, key, options @ ..] = arguments else { return Err(CommandError::Arity(Self::SPEC)) };
        let given = parse_options(Self::SPEC, &[At], host.options(), options)?;
        Ok(Action::Reset { key: KeyArgument::new_or_empty(key, 1)?, at: given.at })
    }
}
