//! `GET key`: the stored form of a key's state, as Redis has it.

use sluicegate_commands::{Keys, ReplyWriter};
use sluicegate_core::{Entry, Timestamp};

use super::spec::KEY;
use crate::protocols::resp::{
    call::{CallResult, CommandCall, Next, ServerCommand, command},
    deferred_replies::StoreOperation,
};

pub(super) const GET: ServerCommand =
    command("GET", 2, &["readonly", "fast"], KEY, "Returns the stored form of a key's state.", run)
        .on_keys(Keys::First);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let [key] = *call.arguments_after_name() else { return Err(call.arity_error()) };
    call.session.apply(StoreOperation::Read(key.into(), reply), call.out);
    Ok(Next::Go)
}

/// Longest state that is returned, in bytes: the entry is copied under the lock of its segment.
const MAX_STATE: usize = 65_536;

/// Writes the encoding of an entry; null if it has recovered.
fn reply(entry: Option<&Entry>, now: Timestamp, writer: &mut dyn ReplyWriter) {
    match entry.filter(|entry| !entry.is_over(now)) {
        Some(entry) if entry.encoded_len() > MAX_STATE => writer.error(&format!(
            "ERR the state of the key has {} bytes: expected at most {MAX_STATE}; use SG.INFO",
            entry.encoded_len()
        )),
        Some(entry) => writer.string(&entry.encode()),
        None => writer.null(),
    }
}
