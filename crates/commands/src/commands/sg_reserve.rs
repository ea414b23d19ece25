//! `SG.RESERVE key policy [COST cost] [MAXWAIT us] [AT us]`: takes units for use after the returned delay.

use std::time::Duration;

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Cost, MaxWait},
    command::{Command, Host, Parsed, parse_apply},
    spec::{Argument, COST, CommandSpec, DECISION, KEY, MAX_SPAN, POLICY},
};

/// `SG.RESERVE`.
pub(crate) struct SgReserve;

impl Command for SgReserve {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.RESERVE",
        summary: "Takes units now, for use after the returned delay.",
        arguments: &[KEY, POLICY, COST, Argument::option("MAXWAIT", "microseconds")],
        ..DECISION
    };

    #[inline]
    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_apply(host, arguments, Self::SPEC, &[Cost, MaxWait, At], |given| Operation::Reserve {
            cost: given.cost(),
            max_wait: given.max_wait.unwrap_or(Duration::from_micros(MAX_SPAN)),
        })
    }
}
