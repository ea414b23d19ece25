//! `SG.TAKEALL n key policy [COST] cost [key policy [COST] cost ...] [ID id] [TTL us] [TIMEOUT us] [AT us]`: takes from all
//! keys or from none; with an id, holds.

use sluicegate_core::{MAX_KEYS_PER_TAKE, Operation};

use crate::{
    CommandError, RepeatedKeys,
    arguments::OptionName::{At, Id, Timeout, Ttl},
    command::{Action, Command, Host, Parsed},
    commands::sg_mtake::{SgMtake, TAKES, parse_takes},
    spec::{Argument, ArgumentKind, CommandSpec, TTL},
};

/// `SG.TAKEALL`.
pub(crate) struct SgTakeall;

impl Command for SgTakeall {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.TAKEALL",
        flags: &["write", "denyoom", "blocking", "movablekeys"],
        summary: "Takes from several keys, from all of them or from none; with an id, holds.",
        arguments: &[
            Argument::new("n", ArgumentKind::Integer),
            TAKES,
            Argument { token: Some("ID"), ..Argument::optional("id", ArgumentKind::Text) },
            TTL,
            Argument::option("TIMEOUT", "microseconds"),
        ],
        ..*SgMtake::SPEC
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        let known = &[Id, Ttl, Timeout, At];
        let (mut operations, given) =
            parse_takes(host, arguments, Self::SPEC, known, MAX_KEYS_PER_TAKE)?;
        // Stores answer once for each distinct key.
        let repeated = RepeatedKeys::remove_from(&mut operations, |it| it.key.bytes);
        match (given.id, given.ttl) {
            (Some(id), ttl) => operations.iter_mut().for_each(|it| {
                it.operation = Operation::Hold { id, cost: it.operation.cost(), ttl };
            }),
            (None, None) => {}
            (None, Some(_)) => return Err(CommandError::TtlWithoutId),
        }
        Ok(match given.timeout()? {
            Some(timeout) => Action::Wait { operations, repeated: Some(repeated), timeout },
            None => Action::ApplyAll { operations, repeated, at: given.at },
        })
    }
}
