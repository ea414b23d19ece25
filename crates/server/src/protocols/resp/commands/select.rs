//! `SELECT index`: there is one database, 0.

use sluicegate_commands::{Argument, ArgumentKind};

use super::spec::FAST;
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const SELECT: ServerCommand = command(
    "SELECT",
    2,
    FAST,
    &[Argument::new("index", ArgumentKind::Integer)],
    "Selects a database; there is only database 0.",
    run,
);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    match *call.arguments_after_name() {
        [b"0"] => call.writer().simple("OK"),
        [index] if !index.is_empty() && index.iter().all(u8::is_ascii_digit) => {
            return Err("ERR DB index is out of range".into());
        }
        _ => return Err("ERR value is not an integer or out of range".into()),
    }
    Ok(Next::Go)
}
