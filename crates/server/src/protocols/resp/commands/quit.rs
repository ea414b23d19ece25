//! `QUIT`: closes the connection.

use super::spec::PRE_AUTH_FLAGS;
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const QUIT: ServerCommand =
    command("QUIT", -1, PRE_AUTH_FLAGS, &[], "Closes the connection.", run);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    call.writer().simple("OK");
    Ok(Next::Close)
}
