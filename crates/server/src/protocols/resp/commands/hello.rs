//! `HELLO [2|3 [AUTH user password] [SETNAME name]]`: selects the protocol, and describes the server.

use sluicegate_commands::{Argument, ArgumentKind, quote};
use sluicegate_resp::Version;

use super::{
    auth::authenticate,
    client::{valid_name, version_number},
    info::{COMPATIBLE, NAME},
    spec::PRE_AUTH_FLAGS,
};
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const HELLO: ServerCommand = command(
    "HELLO",
    -1,
    PRE_AUTH_FLAGS,
    &[Argument::optional("protover", ArgumentKind::Integer)],
    "Selects the protocol, and describes the server.",
    run,
);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let (version, mut options) = match call.arguments_after_name() {
        [] => (call.session.version, &[][..]),
        [version, options @ ..] => (parse_version(version)?, options),
    };
    let (mut credentials, mut name) = (None, None);
    loop {
        options = match *options {
            [] => break,
            [word, user, password, ref rest @ ..] if word.eq_ignore_ascii_case(b"AUTH") => {
                credentials = Some((user, password));
                rest
            }
            [word, given, ref rest @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(valid_name(given)?);
                rest
            }
            [word, ..] => {
                return Err(format!("ERR Syntax error in HELLO option '{}'", quote(word)));
            }
        };
    }
    if let Some((user, password)) = credentials {
        authenticate(call.session, user, password)?;
    }
    if !call.session.authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
             the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
             client and select the RESP protocol version at the same time"
                .into(),
        );
    }
    call.session.version = version;
    let mut details = call.session.client.details.lock();
    details.version = version;
    if let Some(name) = name {
        details.name = name.to_vec();
    }
    drop(details);
    reply(call);
    Ok(Next::Limits(call.session.limits()))
}

fn reply(call: &mut CommandCall<'_, '_, '_>) {
    let (version, id) = (call.session.version, call.session.client.id);
    let mut writer = call.writer();
    writer.map(7);
    writer.bulk("server");
    writer.bulk(NAME);
    writer.bulk("version");
    writer.bulk(COMPATIBLE);
    writer.bulk("proto");
    writer.integer(version_number(version));
    writer.bulk("id");
    writer.integer(i64::try_from(id).unwrap_or(i64::MAX));
    writer.bulk("mode");
    writer.bulk("standalone");
    writer.bulk("role");
    writer.bulk("master");
    writer.bulk("modules");
    writer.array(0);
}

fn parse_version(text: &[u8]) -> Result<Version, String> {
    match text {
        b"2" => Ok(Version::Resp2),
        b"3" => Ok(Version::Resp3),
        _ if !text.is_empty() && text.iter().all(u8::is_ascii_digit) => {
            Err("NOPROTO unsupported protocol version".into())
        }
        _ => Err("ERR Protocol version is not an integer or out of range".into()),
    }
}
