//! `CLIENT subcommand ...`: lists, names and closes clients.

use std::sync::atomic::Ordering;

use sluicegate_commands::quote;
use sluicegate_resp::{Version, Writer};

use super::spec::{ADMIN, SUBCOMMAND};
use crate::{
    net::clients,
    protocols::resp::{
        call::{
            CallResult, CommandCall, CommandTable, Next, ServerCommand, command, unknown_subcommand,
        },
        session::{Session, WORK},
    },
};

/// Bytes after which the list of clients ends, because pending replies are bounded.
const MAX_LIST: usize = 900_000;
/// Maximum bytes of a detail that a client sets.
const MAX_DETAIL: usize = 256;
/// Clients from which on a list of them takes long.
const MANY_CLIENTS: usize = 200;

pub(super) const CLIENT: ServerCommand =
    command("CLIENT", -2, ADMIN, SUBCOMMAND, "Lists, names and closes clients.", run)
        .with_work(WORK)
        .in_lane_if(needs_lane);

fn needs_lane(call: &CommandCall<'_, '_, '_>) -> bool {
    call.arguments_after_name().first().is_some_and(|word| is(word, "LIST") || is(word, "KILL"))
        && call.session.shared.clients.len() > MANY_CLIENTS
}

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let [word, rest @ ..] = call.arguments_after_name() else { return Err(call.arity_error()) };
    let session = &*call.session;
    let table = call.table;
    let writer = &mut Writer::new(call.out, session.version);
    let upper = word.to_ascii_uppercase();
    match (&*upper, rest) {
        (b"ID", []) => writer.integer(i64::try_from(session.client.id).unwrap_or(i64::MAX)),
        (b"GETNAME", []) => {
            let name = session.client.details.lock().name.clone();
            if name.is_empty() { writer.null() } else { writer.bulk(name) }
        }
        (b"SETNAME", [name]) => {
            session.client.details.lock().name = valid_name(name)?.to_vec();
            writer.simple("OK");
        }
        (b"SETINFO", [option, value]) => {
            let mut details = session.client.details.lock();
            if is(option, "LIB-NAME") {
                details.library = valid_detail("lib-name", value)?.to_vec();
            } else if is(option, "LIB-VER") {
                details.library_version = valid_detail("lib-ver", value)?.to_vec();
            } else {
                return Err(format!("ERR Unrecognized option '{}'", quote(option)));
            }
            writer.simple("OK");
        }
        (b"INFO", []) => writer.verbatim(b"txt", line(session, table, session.client) + "\n"),
        (b"LIST", []) => {
            let mut lines = String::new();
            for client in session.shared.clients.all() {
                lines += &line(session, table, &client);
                lines.push('\n');
                if lines.len() > MAX_LIST {
                    break;
                }
            }
            writer.verbatim(b"txt", lines);
        }
        (b"KILL", [_, ..]) => kill(session, rest, writer)?,
        (b"NO-EVICT" | b"NO-TOUCH", [state]) => {
            if !is(state, "ON") && !is(state, "OFF") {
                return Err("ERR syntax error".into());
            }
            writer.simple("OK");
        }
        (b"REPLY", [state]) if is(state, "ON") => writer.simple("OK"),
        (b"REPLY", [mode]) => return Err(unsupported("REPLY", mode, "ON")),
        (b"TRACKING", [state]) if is(state, "OFF") => writer.simple("OK"),
        (b"TRACKING", [state, option, ..]) if is(state, "OFF") => {
            return Err(unsupported("TRACKING OFF", option, "no option"));
        }
        (b"TRACKING", [state, ..]) => return Err(unsupported("TRACKING", state, "OFF")),
        (b"HELP", []) => {
            let known = [
                "GETNAME",
                "ID",
                "INFO",
                "KILL <addr:port> | [ID id] [ADDR addr:port] [SKIPME yes|no]",
                "LIST",
                "NO-EVICT ON|OFF",
                "NO-TOUCH ON|OFF",
                "REPLY ON",
                "SETINFO LIB-NAME|LIB-VER value",
                "SETNAME name",
                "TRACKING OFF",
            ];
            writer.array(known.len());
            known.iter().for_each(|line| writer.simple(format!("CLIENT {line}")));
        }
        (
            b"ID" | b"GETNAME" | b"SETNAME" | b"SETINFO" | b"INFO" | b"LIST" | b"KILL"
            | b"NO-EVICT" | b"NO-TOUCH" | b"REPLY" | b"TRACKING" | b"HELP",
            _,
        ) => {
            let word = word.to_ascii_lowercase().escape_ascii().to_string();
            return Err(format!(
                "ERR wrong number of arguments for 'client|{word}' command; expected a form that CLIENT HELP lists"
            ));
        }
        _ => return Err(unknown_subcommand(word, "CLIENT", "one that CLIENT HELP lists")),
    }
    Ok(Next::Go)
}

fn unsupported(subcommand: &str, value: &[u8], expected: &str) -> String {
    format!("ERR unsupported CLIENT {subcommand} `{}`: expected {expected}", quote(value))
}

/// Checks a name for a client.
pub(super) fn valid_name(name: &[u8]) -> Result<&[u8], String> {
    check_length("client name", name)?;
    check_characters("Client names", name)
}

/// Checks a detail of the library of a client.
fn valid_detail<'a>(name: &str, value: &'a [u8]) -> Result<&'a [u8], String> {
    check_length(name, value)?;
    check_characters(name, value)
}

fn check_length(name: &str, value: &[u8]) -> Result<(), String> {
    let found = value.len();
    if found <= MAX_DETAIL {
        return Ok(());
    }
    Err(format!("ERR invalid {name}: expected at most {MAX_DETAIL} bytes, found {found}"))
}

/// A detail of a client must not break the line of the client in the list. The error has the text of Redis.
fn check_characters<'a>(names: &str, value: &'a [u8]) -> Result<&'a [u8], String> {
    if value.iter().all(u8::is_ascii_graphic) {
        return Ok(value);
    }
    Err(format!("ERR {names} cannot contain spaces, newlines or special characters."))
}

/// A client in one line.
fn line(session: &Session<'_>, table: &CommandTable, client: &clients::Client) -> String {
    let details = client.details.lock().clone();
    let command = table.specs().nth(client.command.load(Ordering::Relaxed));
    let age = session.now.as_micros().saturating_sub(client.since.as_micros()) / 1_000_000;
    format!(
        "id={} addr={} laddr={} fd=0 name={} age={age} idle=0 flags=N db=0 sub=0 psub=0 ssub=0 \
         multi=-1 cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}",
        client.id,
        client.address,
        session.shared.address,
        details.name.escape_ascii(),
        command.map_or("NULL".into(), |command| command.name.to_ascii_lowercase()),
        version_number(details.version),
        details.library.escape_ascii(),
        details.library_version.escape_ascii(),
    )
}

/// `CLIENT KILL addr:port`, or filters and values: `ID`, `ADDR`, `SKIPME`.
fn kill(session: &Session<'_>, arguments: &[&[u8]], writer: &mut Writer<'_>) -> Result<(), String> {
    if let [address] = arguments {
        let named = |client: &clients::Client| client.address.as_bytes() == *address;
        if close(session, false, named) == 0 {
            return Err("ERR No such client".into());
        }
        writer.simple("OK");
        return Ok(());
    }
    let (mut id, mut address, mut skip_me) = (None, None, true);
    if !arguments.len().is_multiple_of(2) {
        return Err("ERR syntax error".into());
    }
    for &[word, value] in arguments.as_chunks().0 {
        if is(word, "ID") {
            let parsed = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
            id = Some(parsed.ok_or("ERR client-id should be greater than 0")?);
        } else if is(word, "ADDR") {
            address = Some(value);
        } else if is(word, "SKIPME") && (is(value, "YES") || is(value, "NO")) {
            skip_me = is(value, "YES");
        } else {
            return Err("ERR syntax error".into());
        }
    }
    let closed = close(session, skip_me, |client| {
        id.is_none_or(|id| client.id == id)
            && address.is_none_or(|address| client.address.as_bytes() == address)
    });
    writer.integer(closed);
    Ok(())
}

/// Closes the clients that are `meant`, and returns their number.
fn close(session: &Session<'_>, skip_me: bool, meant: impl Fn(&clients::Client) -> bool) -> i64 {
    let mut closed = 0;
    for client in session.shared.clients.all() {
        if meant(&client) && !(skip_me && client.id == session.client.id) {
            client.kill();
            closed += 1;
        }
    }
    closed
}

fn is(given: &[u8], word: &str) -> bool {
    given.eq_ignore_ascii_case(word.as_bytes())
}

/// The number of a protocol version.
pub(super) const fn version_number(version: Version) -> i64 {
    match version {
        Version::Resp2 => 2,
        Version::Resp3 => 3,
    }
}
