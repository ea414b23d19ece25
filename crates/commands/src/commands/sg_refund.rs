//! `SG.REFUND key policy [COST cost] [AT us]`: gives back units that are in use.

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Cost},
    command::{Command, Host, Parsed, parse_apply},
    spec::{CommandSpec, DECISION},
};

/// `SG.REFUND`.
pub(crate) struct SgRefund;

impl Command for SgRefund {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.REFUND",
        summary: "Gives back units that are in use.",
        ..DECISION
    };

    #[inline]
    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_apply(host, arguments, Self::SPEC, &[Cost, At], |given| {
            Operation::Refund(given.cost())
        })
    }
}
