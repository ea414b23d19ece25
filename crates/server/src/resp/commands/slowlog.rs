//! `SLOWLOG subcommand`: nothing is recorded.

use sluicegate_commands::{CommandSpec, Keys};

use super::spec::{ADMIN, SUBCOMMAND};
use crate::resp::call::{Call, Next, ServerCommand, unknown_subcommand};

pub(super) struct SlowLog;

impl ServerCommand for SlowLog {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SLOWLOG",
        arity: -2,
        flags: ADMIN,
        keys: Keys::None,
        summary: "Reports that nothing is recorded.",
        group: "server",
        arguments: SUBCOMMAND,
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let word = call.rest().first().copied().unwrap_or_default();
        match &*word.to_ascii_uppercase() {
            b"GET" => call.writer().array(0),
            b"LEN" => call.writer().integer(0),
            b"RESET" => call.writer().simple("OK"),
            _ => return Err(unknown_subcommand(word, Self::SPEC.name)),
        }
        Ok(Next::Go)
    }
}
