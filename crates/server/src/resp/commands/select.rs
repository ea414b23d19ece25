//! `SELECT index`: there is one database, 0.

use sluicegate_commands::{Argument, ArgumentKind, CommandSpec, Keys};

use super::spec::FAST;
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Select;

impl ServerCommand for Select {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SELECT",
        arity: 2,
        flags: FAST,
        keys: Keys::None,
        summary: "Selects a database; there is only database 0.",
        group: "connection",
        arguments: &[Argument::new("index", ArgumentKind::Integer)],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        match *call.rest() {
            [b"0"] => call.writer().simple("OK"),
            [index] if !index.is_empty() && index.iter().all(u8::is_ascii_digit) => {
                return Err("ERR DB index is out of range".into());
            }
            _ => return Err("ERR value is not an integer or out of range".into()),
        }
        Ok(Next::Go)
    }
}
