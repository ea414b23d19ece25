//! `DBSIZE`: the number of keys in this process.

use sluicegate_core::StoreStatus;

use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const DBSIZE: ServerCommand =
    command("DBSIZE", 1, &["readonly", "fast"], &[], "Counts the keys.", run).of_server();

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let StoreStatus::Local(usage) = call.session.shared.decider.store_status() else {
        let error = "ERR DBSIZE is unavailable: the keys are in a store; ask the store";
        return Err(error.into());
    };
    call.writer().integer(i64::try_from(usage.keys).unwrap_or(i64::MAX));
    Ok(Next::Go)
}
