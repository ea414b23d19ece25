//! `SG.HOLD key policy id [COST cost] [TTL us] [TIMEOUT us] [AT us]`: holds units until they are settled or the hold
//! expires.

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Cost, Timeout, Ttl},
    command::{Command, Host, Parsed, parse_hold},
    spec::{Argument, COST, CommandSpec, HOLD, ID, KEY, POLICY, TTL},
};

/// `SG.HOLD`.
pub(crate) struct SgHold;

impl Command for SgHold {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.HOLD",
        summary: "Holds units until they are settled, or until the hold expires.",
        flags: &["write", "denyoom", "blocking"],
        arguments: &[KEY, POLICY, ID, COST, TTL, Argument::option("TIMEOUT", "microseconds")],
        ..HOLD
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_hold(host, arguments, Self::SPEC, &[Cost, Ttl, Timeout, At], |id, given| {
            Operation::Hold { id, cost: given.cost(), ttl: given.ttl }
        })
    }
}
