//! Small commands that tell of the server, or pretend to change it.

use sluicegate_commands::quote;
use sluicegate_core::{StoreStatus, Timestamp};
use sluicegate_resp::Writer;

use super::{connection::LIMITS, context::RespContext};

/// `SELECT index`: there is one database.
pub(super) fn select(index: &[u8], writer: &mut Writer<'_>) -> Result<(), String> {
    match index {
        b"0" => writer.simple("OK"),
        _ if !index.is_empty() && index.iter().all(u8::is_ascii_digit) => {
            return Err("ERR DB index is out of range".into());
        }
        _ => return Err("ERR value is not an integer or out of range".into()),
    }
    Ok(())
}

/// `CONFIG GET pattern [pattern ...]`.
pub(super) fn config(
    shared: &RespContext,
    arguments: &[&[u8]],
    writer: &mut Writer<'_>,
) -> Result<(), String> {
    let [word, patterns @ ..] = arguments else { return Err(unknown(b"", "CONFIG")) };
    if !word.eq_ignore_ascii_case(b"GET") {
        return Err(unknown(word, "CONFIG"));
    }
    if patterns.is_empty() {
        return Err("ERR wrong number of arguments for 'config|get' command".into());
    }
    let settings = settings(shared);
    let found = settings.iter().filter(|(name, _)| {
        patterns.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    });
    let found: Vec<_> = found.collect();
    writer.map(found.len());
    for (name, value) in found {
        writer.bulk(name);
        writer.bulk(value);
    }
    Ok(())
}

/// What can be asked for. The password cannot.
fn settings(shared: &RespContext) -> Vec<(&'static str, String)> {
    vec![
        ("appendonly", "no".into()),
        ("bind", shared.address.ip().to_string()),
        ("databases", "1".into()),
        ("maxclients", shared.clients.max().to_string()),
        (
            "maxmemory",
            match shared.decider.store_status() {
                StoreStatus::Local(usage) => usage.max_bytes.to_string(),
                StoreStatus::Remote(_) => "0".to_owned(),
            },
        ),
        ("port", shared.address.port().to_string()),
        ("proto-max-bulk-len", LIMITS.max_bulk.to_string()),
        ("save", String::new()),
        ("test-clock", if shared.test_clock { "yes" } else { "no" }.into()),
        ("timeout", shared.timeouts.idle.as_secs().to_string()),
    ]
}

/// `ROLE`.
pub(super) fn role(writer: &mut Writer<'_>) {
    writer.array(3);
    writer.bulk("master");
    writer.integer(0);
    writer.array(0);
}

/// `TIME`.
pub(super) fn time(now: Timestamp, writer: &mut Writer<'_>) {
    writer.array(2);
    writer.bulk((now.as_micros() / 1_000_000).to_string());
    writer.bulk((now.as_micros() % 1_000_000).to_string());
}

/// `LATENCY`: nothing is recorded.
pub(super) fn latency(arguments: &[&[u8]], writer: &mut Writer<'_>) -> Result<(), String> {
    let word = arguments.first().copied().unwrap_or_default();
    match &*word.to_ascii_uppercase() {
        b"LATEST" | b"HISTORY" => writer.array(0),
        b"HISTOGRAM" => writer.map(0),
        b"RESET" => writer.integer(0),
        _ => return Err(unknown(word, "LATENCY")),
    }
    Ok(())
}

/// `SLOWLOG`: nothing is recorded.
pub(super) fn slow_log(arguments: &[&[u8]], writer: &mut Writer<'_>) -> Result<(), String> {
    let word = arguments.first().copied().unwrap_or_default();
    match &*word.to_ascii_uppercase() {
        b"GET" => writer.array(0),
        b"LEN" => writer.integer(0),
        b"RESET" => writer.simple("OK"),
        _ => return Err(unknown(word, "SLOWLOG")),
    }
    Ok(())
}

/// The error for a subcommand that `command` does not have.
pub(super) fn unknown(word: &[u8], command: &str) -> String {
    format!("ERR unknown subcommand '{}'. Try {command} HELP.", quote(word))
}

/// Whether `text` is what `pattern` describes: `*` is anything, `?` any byte.
///
/// At most one `*` is ever gone back to, so it takes at most the product of both lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((star_at, star_read)) = star else { return false };
                star = Some((star_at, star_read + 1));
                at = star_at + 1;
                read = star_read + 1;
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let table = [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("save", "save", true),
            ("sav", "save", false),
            ("s?ve", "save", true),
            ("*max*", "proto-max-bulk-len", true),
            ("*-len", "proto-max-bulk-len", true),
            ("*-lem", "proto-max-bulk-len", false),
            ("**", "a", true),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
