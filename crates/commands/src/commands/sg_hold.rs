//! `SG.HOLD key policy id [COST cost] [TTL us] [TIMEOUT us] [SESSION] [AT us]`: holds units until they are settled or the hold
//! expires.

use sluicegate_core::HoldOperation;

use crate::{
    arguments::OptionName::{At, Cost, Session, Timeout, Ttl},
    command::{Command, Host, Parsed, parse_hold},
    spec::{Argument, ArgumentKind, COST, CommandSpec, HOLD, ID, KEY, POLICY, TTL},
};

/// `SG.HOLD`.
pub(crate) struct SgHold;

impl Command for SgHold {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.HOLD",
        summary: "Holds units until they are settled, or until the hold expires.",
        flags: &["write", "denyoom", "blocking"],
        arguments: &[
            KEY,
            POLICY,
            ID,
            COST,
            TTL,
            Argument::option("TIMEOUT", "microseconds"),
            Argument {
                token: Some("SESSION"),
                ..Argument::optional("session", ArgumentKind::Token)
            },
        ],
        ..HOLD
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_hold(host, arguments, Self::SPEC, &[Cost, Ttl, Timeout, Session, At], |id, given| {
            HoldOperation::Hold { id, cost: given.cost(), ttl: given.ttl }
        })
    }
}
