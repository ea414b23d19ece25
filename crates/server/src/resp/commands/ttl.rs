//! `TTL key` and `PTTL key`: the time until a key has recovered.

use sluicegate_commands::{CommandSpec, EntryReply, Keys, ReplyWriter};
use sluicegate_core::{Entry, Timestamp};

use super::spec::KEY;
use crate::resp::{
    call::{Call, Next, ServerCommand},
    store_operation::StoreOperation,
};

pub(super) struct Ttl;

impl ServerCommand for Ttl {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "TTL",
        summary: "Tells until when a key is kept, in seconds.",
        arity: 2,
        flags: &["readonly", "fast"],
        keys: Keys::First,
        group: "generic",
        arguments: KEY,
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let [key] = *call.rest() else { return Err(call.arity_error(Self::SPEC)) };
        let reply: EntryReply = |entry, now, writer| reply(entry, now, 1_000_000, writer);
        call.session.apply(StoreOperation::Read(key.into(), reply), call.out);
        Ok(Next::Go)
    }
}

pub(super) struct Pttl;

impl ServerCommand for Pttl {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "PTTL",
        summary: "Returns the expiry time of a key, in milliseconds.",
        arity: 2,
        flags: &["readonly", "fast"],
        keys: Keys::First,
        group: "generic",
        arguments: KEY,
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let [key] = *call.rest() else { return Err(call.arity_error(Self::SPEC)) };
        let reply: EntryReply = |entry, now, writer| reply(entry, now, 1_000, writer);
        call.session.apply(StoreOperation::Read(key.into(), reply), call.out);
        Ok(Next::Go)
    }
}

/// Writes the time in units of `unit_us` microseconds, rounded up; -2 if the key has recovered.
fn reply(entry: Option<&Entry>, now: Timestamp, unit_us: u128, writer: &mut dyn ReplyWriter) {
    let lifetime = entry.map_or(0, |entry| entry.lifetime(now).as_micros());
    writer.integer(match lifetime.div_ceil(unit_us) {
        0 => -2,
        units => i64::try_from(units).unwrap_or(i64::MAX),
    });
}
