//! `PING [message]`: checks the connection.

use sluicegate_commands::{Argument, ArgumentKind, CommandSpec, Keys};

use super::spec::FAST;
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Ping;

impl ServerCommand for Ping {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "PING",
        arity: -1,
        flags: FAST,
        keys: Keys::None,
        summary: "Returns PONG, or the message.",
        group: "connection",
        arguments: &[Argument::optional("message", ArgumentKind::Text)],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        match *call.rest() {
            [] => call.writer().simple("PONG"),
            [message] => call.writer().bulk(message),
            _ => return Err(call.arity_error(Self::SPEC)),
        }
        Ok(Next::Go)
    }
}
