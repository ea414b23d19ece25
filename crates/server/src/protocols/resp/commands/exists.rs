//! `EXISTS key [key ...]`: the number of keys that have state.

use sluicegate_commands::Keys;

use super::spec::EACH_KEY;
use crate::protocols::resp::{
    call::{CallResult, CommandCall, Next, ServerCommand, command},
    deferred_replies::{PendingCount, StoreOperation},
};

pub(super) const EXISTS: ServerCommand =
    command("EXISTS", -2, &["readonly", "fast"], EACH_KEY, "Counts the keys that have state.", run)
        .on_keys(Keys::All);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let counted = PendingCount::new(call.arguments_after_name(), false);
    call.session.apply(StoreOperation::Count(counted), call.out);
    Ok(Next::Go)
}
