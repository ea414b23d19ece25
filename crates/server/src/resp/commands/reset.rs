//! `RESET`: resets the connection to the state of a new one.

use sluicegate_commands::{CommandSpec, Keys};
use sluicegate_resp::Version;

use super::spec::EARLY;
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Reset;

impl ServerCommand for Reset {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "RESET",
        arity: 1,
        flags: EARLY,
        keys: Keys::None,
        summary: "Resets the connection.",
        group: "connection",
        arguments: &[],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        call.writer().simple("RESET");
        let session = &mut *call.session;
        session.version = Version::Resp2;
        session.authenticated = !session.shared.asks_for_password();
        let mut details = session.client.details.lock();
        details.version = Version::Resp2;
        details.name.clear();
        drop(details);
        Ok(Next::Limits(session.limits()))
    }
}
