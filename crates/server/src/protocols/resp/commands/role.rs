//! `ROLE`: the server is a primary without replicas.

use super::spec::FAST;
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const ROLE: ServerCommand =
    command("ROLE", 1, FAST, &[], "Reports that this server is a primary without replicas.", run)
        .of_server();

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let mut writer = call.writer();
    writer.array(3);
    writer.bulk("master");
    writer.integer(0);
    writer.array(0);
    Ok(Next::Go)
}
