//! `RESET`: resets the connection to the state of a new one.

use sluicegate_resp::Version;

use super::spec::PRE_AUTH_FLAGS;
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const RESET: ServerCommand =
    command("RESET", 1, PRE_AUTH_FLAGS, &[], "Resets the connection.", run);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    call.writer().simple("RESET");
    let session = &mut *call.session;
    session.version = Version::Resp2;
    session.authenticated = session.shared.password.is_none();
    let mut details = session.client.details.lock();
    details.version = Version::Resp2;
    details.name.clear();
    drop(details);
    Ok(Next::Limits(session.limits()))
}
