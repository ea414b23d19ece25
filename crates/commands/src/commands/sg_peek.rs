//! `SG.PEEK key policy [COST cost] [AT us]`: returns what `SG.TAKE` would, and stores nothing.

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Cost},
    command::{Command, Host, Parsed, parse_apply},
    spec::{CommandSpec, DECISION, FAST_READ},
};

/// `SG.PEEK`.
pub(crate) struct SgPeek;

impl Command for SgPeek {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.PEEK",
        flags: FAST_READ,
        summary: "Returns what SG.TAKE would, and stores nothing.",
        ..DECISION
    };

    #[inline]
    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_apply(host, arguments, Self::SPEC, &[Cost, At], |given| Operation::Peek(given.cost()))
    }
}
