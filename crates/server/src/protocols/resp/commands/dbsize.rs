//! `DBSIZE`: the number of keys in this process.

use crate::protocols::resp::call::{Call, CallResult, Next, ServerCommand};

pub(super) const DBSIZE: ServerCommand =
    ServerCommand::new("DBSIZE", 1, &["readonly", "fast"], &[], "Counts the keys.", run)
        .of_server();

fn run(call: &mut Call<'_, '_, '_>) -> CallResult {
    let Some(store) = call.session.shared.decider.store.memory() else {
        let error = "ERR DBSIZE is unavailable: the keys are in a store; ask the store";
        return Err(error.into());
    };
    call.writer().integer(i64::try_from(store.len()).unwrap_or(i64::MAX));
    Ok(Next::Go)
}
