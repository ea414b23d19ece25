//! `SG.SETTLE key policy id [USED n] [AT us]`: ends a hold, and charges the units used.

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Used},
    command::{Command, Host, Parsed, parse_hold},
    spec::{Argument, CommandSpec, HOLD, ID, KEY, POLICY},
};

/// `SG.SETTLE`.
pub(crate) struct SgSettle;

impl Command for SgSettle {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.SETTLE",
        summary: "Ends a hold, and charges the units that were used, or all that were held.",
        arguments: &[KEY, POLICY, ID, Argument::option("USED", "units")],
        ..HOLD
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_hold(host, arguments, Self::SPEC, &[Used, At], |id, given| Operation::Settle {
            id,
            used: given.used,
        })
    }
}
