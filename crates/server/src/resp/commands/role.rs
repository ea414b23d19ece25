//! `ROLE`: the server is a primary without replicas.

use sluicegate_commands::{CommandSpec, Keys};

use super::spec::FAST;
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Role;

impl ServerCommand for Role {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "ROLE",
        arity: 1,
        flags: FAST,
        keys: Keys::None,
        summary: "Reports that this server is a primary without replicas.",
        group: "server",
        arguments: &[],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let mut writer = call.writer();
        writer.array(3);
        writer.bulk("master");
        writer.integer(0);
        writer.array(0);
        Ok(Next::Go)
    }
}
