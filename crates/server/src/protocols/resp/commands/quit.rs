//! `QUIT`: closes the connection.

use super::spec::EARLY;
use crate::protocols::resp::call::{Call, CallResult, Next, ServerCommand};

pub(super) const QUIT: ServerCommand =
    ServerCommand::new("QUIT", -1, EARLY, &[], "Closes the connection.", run);

fn run(call: &mut Call<'_, '_, '_>) -> CallResult {
    call.writer().simple("OK");
    Ok(Next::Close)
}
