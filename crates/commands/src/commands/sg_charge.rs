//! `SG.CHARGE key policy [COST cost] [AT us]`: takes units whether or not they fit.

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Cost},
    command::{Command, Host, Parsed, parse_apply},
    spec::{CommandSpec, DECISION},
};

/// `SG.CHARGE`.
pub(crate) struct SgCharge;

impl Command for SgCharge {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.CHARGE",
        summary: "Takes units whether or not they fit; later requests wait until they are repaid.",
        ..DECISION
    };

    #[inline]
    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_apply(host, arguments, Self::SPEC, &[Cost, At], |given| {
            Operation::Charge(given.cost())
        })
    }
}
