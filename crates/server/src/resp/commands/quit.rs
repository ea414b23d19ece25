//! `QUIT`: closes the connection.

use sluicegate_commands::{CommandSpec, Keys};

use super::spec::EARLY;
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Quit;

impl ServerCommand for Quit {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "QUIT",
        arity: -1,
        flags: EARLY,
        keys: Keys::None,
        summary: "Closes the connection.",
        group: "connection",
        arguments: &[],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        call.writer().simple("OK");
        Ok(Next::Close)
    }
}
