//! `ECHO message`: returns the message.

use super::spec::{FAST, text};
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const ECHO: ServerCommand =
    command("ECHO", 2, FAST, &[text("message")], "Returns the message.", run);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let [message] = *call.arguments_after_name() else { return Err(call.arity_error()) };
    call.writer().bulk(message);
    Ok(Next::Go)
}
