//! `TIME`: the time of the server, in seconds and microseconds.

use sluicegate_commands::{CommandSpec, Keys};

use super::spec::FAST;
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Time;

impl ServerCommand for Time {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "TIME",
        arity: 1,
        flags: FAST,
        keys: Keys::None,
        summary: "Returns the time of the server.",
        group: "server",
        arguments: &[],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let now = call.session.now.as_micros();
        let mut writer = call.writer();
        writer.array(2);
        writer.bulk((now / 1_000_000).to_string());
        writer.bulk((now % 1_000_000).to_string());
        Ok(Next::Go)
    }
}
