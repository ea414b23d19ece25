//! `ECHO message`: returns the message.

use sluicegate_commands::{Argument, ArgumentKind};

use super::spec::FAST;
use crate::protocols::resp::call::{Call, CallResult, Next, ServerCommand};

pub(super) const ECHO: ServerCommand = ServerCommand::new(
    "ECHO",
    2,
    FAST,
    &[Argument::new("message", ArgumentKind::Text)],
    "Returns the message.",
    run,
);

fn run(call: &mut Call<'_, '_, '_>) -> CallResult {
    let [message] = *call.rest() else { return Err(call.arity_error()) };
    call.writer().bulk(message);
    Ok(Next::Go)
}
