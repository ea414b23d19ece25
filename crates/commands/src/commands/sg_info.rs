//! `SG.INFO key [AT us]`: describes the state of a key.

use sluicegate_core::{Entry, Timestamp};

use crate::{
    CommandError,
    arguments::{KeyArgument, OptionName::At, parse_options},
    command::{Action, Command, Host, Parsed},
    decision_format::ReplyWriter,
    description::KeyDescription,
    spec::{CommandSpec, FAST_READ, ONE_KEY},
};

/// `SG.INFO`.
pub(crate) struct SgInfo;

impl Command for SgInfo {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "SG.INFO",
        flags: FAST_READ,
        summary: "Describes what is stored for a key.",
        ..ONE_KEY
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        let [_, key, options @ ..] = arguments else { return Err(CommandError::Arity(Self::SPEC)) };
        let given = parse_options(Self::SPEC, &[At], host.options(), options)?;
        Ok(Action::Read { key: KeyArgument::new_or_empty(key, 1)?, at: given.at, reply })
    }
}

/// Writes the description of an entry; null if it has recovered.
fn reply(entry: Option<&Entry>, now: Timestamp, writer: &mut dyn ReplyWriter) {
    let Some(description) = entry.and_then(|entry| KeyDescription::of(entry, now)) else {
        return writer.null();
    };
    writer.map(5);
    string(writer, "policy", &description.policy);
    integer(writer, "reset_after_us", description.reset_after_us);
    integer(writer, "lifetime_us", description.lifetime_us);
    integer(writer, "bytes", description.bytes);
    writer.string(b"limits");
    writer.array(description.limits.len());
    for limit in &description.limits {
        writer.map(5);
        string(writer, "limit", &limit.limit);
        integer(writer, "capacity", limit.capacity);
        integer(writer, "used", limit.used);
        integer(writer, "remaining", limit.remaining);
        integer(writer, "reset_after_us", limit.reset_after_us);
    }
}

fn string(writer: &mut dyn ReplyWriter, name: &str, value: &str) {
    writer.string(name.as_bytes());
    writer.string(value.as_bytes());
}

fn integer(writer: &mut dyn ReplyWriter, name: &str, value: i64) {
    writer.string(name.as_bytes());
    writer.integer(value);
}
