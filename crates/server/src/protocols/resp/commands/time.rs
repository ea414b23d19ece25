//! `TIME`: the time of the server, in seconds and microseconds.

use super::spec::FAST;
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const TIME: ServerCommand =
    command("TIME", 1, FAST, &[], "Returns the time of the server.", run).of_server();

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let now = call.session.now.as_micros();
    let mut writer = call.writer();
    writer.array(2);
    writer.bulk((now / 1_000_000).to_string());
    writer.bulk((now % 1_000_000).to_string());
    Ok(Next::Go)
}
