//! `TTL key` and `PTTL key`: the time until a key has recovered.

use sluicegate_commands::{EntryReply, Keys, ReplyWriter};
use sluicegate_core::{Entry, Timestamp};

use super::spec::KEY;
use crate::protocols::resp::{
    call::{CallResult, CommandCall, Next, ServerCommand, command},
    deferred_replies::StoreOperation,
};

pub(super) const TTL: ServerCommand = command(
    "TTL",
    2,
    &["readonly", "fast"],
    KEY,
    "Returns the time until a key expires, in seconds.",
    |call| run(call, |entry, now, writer| reply(entry, now, 1_000_000, writer)),
)
.on_keys(Keys::First);

pub(super) const PTTL: ServerCommand = command(
    "PTTL",
    2,
    &["readonly", "fast"],
    KEY,
    "Returns the time until a key expires, in milliseconds.",
    |call| run(call, |entry, now, writer| reply(entry, now, 1_000, writer)),
)
.on_keys(Keys::First);

fn run(call: &mut CommandCall<'_, '_, '_>, reply: EntryReply) -> CallResult {
    let [key] = *call.arguments_after_name() else { return Err(call.arity_error()) };
    call.session.apply(StoreOperation::Read(key.into(), reply), call.out);
    Ok(Next::Go)
}

/// Writes the time in units of `unit_us` microseconds, rounded up; -2 if the key has recovered.
fn reply(entry: Option<&Entry>, now: Timestamp, unit_us: u128, writer: &mut dyn ReplyWriter) {
    let lifetime = entry.map_or(0, |entry| entry.lifetime(now).as_micros());
    writer.integer(match lifetime.div_ceil(unit_us) {
        0 => -2,
        units => i64::try_from(units).unwrap_or(i64::MAX),
    });
}
