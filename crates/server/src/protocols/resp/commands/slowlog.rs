//! `SLOWLOG subcommand`: nothing is recorded.

use super::spec::{ADMIN, SUBCOMMAND};
use crate::protocols::resp::call::{
    CallResult, CommandCall, Next, ServerCommand, command, unknown_subcommand,
};

pub(super) const SLOWLOG: ServerCommand =
    command("SLOWLOG", -2, ADMIN, SUBCOMMAND, "Reports that nothing is recorded.", run).of_server();

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let word = call.arguments_after_name().first().copied().unwrap_or_default();
    match &*word.to_ascii_uppercase() {
        b"GET" => call.writer().array(0),
        b"LEN" => call.writer().integer(0),
        b"RESET" => call.writer().simple("OK"),
        _ => return Err(unknown_subcommand(word, "SLOWLOG", "GET, LEN or RESET")),
    }
    Ok(Next::Go)
}
