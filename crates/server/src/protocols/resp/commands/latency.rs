//! `LATENCY subcommand`: nothing is recorded.

use super::spec::{ADMIN, SUBCOMMAND};
use crate::protocols::resp::call::{
    CallResult, CommandCall, Next, ServerCommand, command, unknown_subcommand,
};

pub(super) const LATENCY: ServerCommand =
    command("LATENCY", -2, ADMIN, SUBCOMMAND, "Reports that no latency is recorded.", run)
        .of_server();

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let word = call.arguments_after_name().first().copied().unwrap_or_default();
    match &*word.to_ascii_uppercase() {
        b"LATEST" | b"HISTORY" => call.writer().array(0),
        b"HISTOGRAM" => call.writer().map(0),
        b"RESET" => call.writer().integer(0),
        _ => {
            return Err(unknown_subcommand(word, "LATENCY", "HISTOGRAM, HISTORY, LATEST or RESET"));
        }
    }
    Ok(Next::Go)
}
