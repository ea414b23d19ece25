//! `PING [message]`: checks the connection.

use sluicegate_commands::{Argument, ArgumentKind};

use super::spec::FAST;
use crate::protocols::resp::call::{Call, CallResult, Next, ServerCommand};

pub(super) const PING: ServerCommand = ServerCommand::new(
    "PING",
    -1,
    FAST,
    &[Argument::optional("message", ArgumentKind::Text)],
    "Returns PONG, or the message.",
    run,
);

fn run(call: &mut Call<'_, '_, '_>) -> CallResult {
    match *call.rest() {
        [] => call.writer().simple("PONG"),
        [message] => call.writer().bulk(message),
        _ => return Err(call.arity_error()),
    }
    Ok(Next::Go)
}
