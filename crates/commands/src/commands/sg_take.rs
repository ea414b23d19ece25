//! `SG.TAKE key policy [COST cost] [AT us]`: takes units, all of them or none.

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Cost},
    command::{Command, Host, Parsed, parse_apply},
    spec::{CommandSpec, DECISION},
};

/// `SG.TAKE`.
pub(crate) struct SgTake;

impl Command for SgTake {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.TAKE",
        summary: "Takes units under a policy: all of them or none.",
        ..DECISION
    };

    #[inline]
    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_apply(host, arguments, Self::SPEC, &[Cost, At], |given| Operation::Take(given.cost()))
    }
}
