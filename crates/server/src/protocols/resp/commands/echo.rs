//! `ECHO message`: returns the message.

use super::spec::{FAST, text};
use crate::protocols::resp::call::{Call, CallResult, Next, ServerCommand, command};

pub(super) const ECHO: ServerCommand =
    command("ECHO", 2, FAST, &[text("message")], "Returns the message.", run);

fn run(call: &mut Call<'_, '_, '_>) -> CallResult {
    let [message] = *call.rest() else { return Err(call.arity_error()) };
    call.writer().bulk(message);
    Ok(Next::Go)
}
