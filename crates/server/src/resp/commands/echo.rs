//! `ECHO message`: returns the message.

use sluicegate_commands::{Argument, ArgumentKind, CommandSpec, Keys};

use super::spec::FAST;
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Echo;

impl ServerCommand for Echo {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "ECHO",
        arity: 2,
        flags: FAST,
        keys: Keys::None,
        summary: "Returns the message.",
        group: "connection",
        arguments: &[Argument::new("message", ArgumentKind::Text)],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let [message] = *call.rest() else { return Err(call.arity_error(Self::SPEC)) };
        call.writer().bulk(message);
        Ok(Next::Go)
    }
}
