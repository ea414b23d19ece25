//! `DBSIZE`: the number of keys in this process.

use sluicegate_commands::{CommandSpec, Keys};

use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct DbSize;

impl ServerCommand for DbSize {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "DBSIZE",
        arity: 1,
        flags: &["readonly", "fast"],
        keys: Keys::None,
        summary: "Counts the keys.",
        group: "server",
        arguments: &[],
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let Some(store) = call.session.shared.home.memory() else {
            let error = "ERR DBSIZE is unavailable: the keys are in a store; ask the store";
            return Err(error.into());
        };
        call.writer().integer(i64::try_from(store.len()).unwrap_or(i64::MAX));
        Ok(Next::Go)
    }
}
