//! `HELLO`, `AUTH` and `RESET`: which protocol, and who is there.

use sluicegate_resp::{Version, Writer};

use super::{
    client::valid_name,
    info::{COMPATIBLE, NAME},
    session::{Next, Session},
};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`.
pub(super) fn hello(
    session: &mut Session<'_>,
    arguments: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<Next, String> {
    let (version, mut options) = match arguments {
        [] => (session.version, arguments),
        [version, options @ ..] => (protocol(version)?, options),
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
                let word = sluicegate_commands::quote(word);
                return Err(format!("ERR Syntax error in HELLO option '{word}'"));
            }
        };
    }
    if let Some((user, password)) = credentials {
        log_in(session, user, password)?;
    }
    if !session.authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                    the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                    client and select the RESP protocol version at the same time"
                .into(),
        );
    }

    session.version = version;
    let mut details = session.client.details.lock();
    details.version = version;
    if let Some(name) = name {
        details.name = name.to_vec();
    }
    drop(details);

    let mut writer = Writer::new(out, version);
    writer.map(7);
    writer.bulk("server");
    writer.bulk(NAME);
    writer.bulk("version");
    writer.bulk(COMPATIBLE);
    writer.bulk("proto");
    writer.integer(number(version));
    writer.bulk("id");
    writer.integer(i64::try_from(session.client.id).unwrap_or(i64::MAX));
    writer.bulk("mode");
    writer.bulk("standalone");
    writer.bulk("role");
    writer.bulk("master");
    writer.bulk("modules");
    writer.array(0);
    Ok(Next::Limits(session.limits()))
}

/// `AUTH [user] password`.
pub(super) fn auth(
    session: &mut Session<'_>,
    arguments: &[&[u8]],
    writer: &mut Writer<'_>,
) -> Result<Next, String> {
    match *arguments {
        [_] if !session.shared.asks_for_password() => {
            return Err("ERR AUTH <password> called without any password configured for the \
                        default user. Are you sure your configuration is correct?"
                .into());
        }
        [password] => log_in(session, b"default", password)?,
        [user, password] => log_in(session, user, password)?,
        _ => return Err("ERR syntax error".into()),
    }
    writer.simple("OK");
    Ok(Next::Limits(session.limits()))
}

/// `RESET`: the connection as if new.
pub(super) fn reset(session: &mut Session<'_>) {
    session.version = Version::Resp2;
    session.authenticated = !session.shared.asks_for_password();
    let mut details = session.client.details.lock();
    details.version = Version::Resp2;
    details.name.clear();
}

/// There is one user, `default`.
fn log_in(session: &mut Session<'_>, user: &[u8], password: &[u8]) -> Result<(), String> {
    // The password is looked at whatever the user: the time taken shall not tell which was wrong.
    let known = session.shared.knows(password);
    if user != b"default" || !known {
        session.login_failed = true;
        session.shared.incidents.note(session.client, session.now, "wrong password");
        session.worker.stats().login_failures.add();
        return Err(WRONG_PASSWORD.into());
    }
    session.authenticated = true;
    Ok(())
}

fn protocol(text: &[u8]) -> Result<Version, String> {
    match text {
        b"2" => Ok(Version::Resp2),
        b"3" => Ok(Version::Resp3),
        _ if !text.is_empty() && text.iter().all(u8::is_ascii_digit) => {
            Err("NOPROTO unsupported protocol version".into())
        }
        _ => Err("ERR Protocol version is not an integer or out of range".into()),
    }
}

/// The protocol's number.
pub(super) const fn number(version: Version) -> i64 {
    match version {
        Version::Resp2 => 2,
        Version::Resp3 => 3,
    }
}
