//! `PING [message]`: checks the connection.

use super::spec::{FAST, optional};
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const PING: ServerCommand =
    command("PING", -1, FAST, &[optional("message")], "Returns PONG, or the message.", run);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    match *call.arguments_after_name() {
        [] => call.writer().simple("PONG"),
        [message] => call.writer().bulk(message),
        _ => return Err(call.arity_error()),
    }
    Ok(Next::Go)
}
