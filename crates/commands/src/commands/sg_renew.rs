//! `SG.RENEW key policy id [TTL us] [AT us]`: prolongs a hold.

use sluicegate_core::Operation;

use crate::{
    arguments::OptionName::{At, Ttl},
    command::{Command, Host, Parsed, parse_hold},
    spec::{CommandSpec, HOLD, ID, KEY, POLICY, TTL},
};

/// `SG.RENEW`.
pub(crate) struct SgRenew;

impl Command for SgRenew {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.RENEW",
        summary: "Prolongs a hold, which then expires that long from now.",
        arguments: &[KEY, POLICY, ID, TTL],
        ..HOLD
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        parse_hold(host, arguments, Self::SPEC, &[Ttl, At], |id, given| Operation::Renew {
            id,
            ttl: given.ttl,
        })
    }
}
