//! `DEL key [key ...]`: resets keys. The reply is the number of those that had state.

use sluicegate_commands::Keys;

use super::spec::EACH_KEY;
use crate::protocols::resp::{
    call::{CallResult, CommandCall, Next, ServerCommand, command},
    deferred_replies::{PendingCount, StoreOperation},
};

pub(super) const DEL: ServerCommand =
    command("DEL", -2, &["write"], EACH_KEY, "Resets keys.", run).on_keys(Keys::All);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let counted = PendingCount::new(call.arguments_after_name(), true);
    call.session.apply(StoreOperation::Count(counted), call.out);
    Ok(Next::Go)
}
