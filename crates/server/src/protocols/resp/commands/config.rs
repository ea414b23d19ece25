//! `CONFIG GET pattern [pattern ...]`: settings by name. The password is none of them.

use sluicegate_core::StoreStatus;

use super::spec::{ADMIN, SUBCOMMAND};
use crate::protocols::resp::{
    call::{CallResult, CommandCall, Next, ServerCommand, command, unknown_subcommand},
    session::{LIMITS, WORK},
    worker::RespContext,
};

pub(super) const CONFIG: ServerCommand =
    command("CONFIG", -2, ADMIN, SUBCOMMAND, "Returns settings.", run).of_server().with_work(WORK);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let patterns = match call.arguments_after_name() {
        [word, patterns @ ..] if word.eq_ignore_ascii_case(b"GET") => patterns,
        rest => {
            let word = rest.first().copied().unwrap_or_default();
            return Err(unknown_subcommand(word, "CONFIG", "GET"));
        }
    };
    if patterns.is_empty() {
        return Err(
            "ERR wrong number of arguments for 'config|get' command; expected CONFIG GET pattern \
                    [pattern ...]"
                .into(),
        );
    }
    let mut found = settings(call.session.shared);
    found.retain(|(name, _)| {
        patterns.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    });
    let mut writer = call.writer();
    writer.map(found.len());
    for (name, value) in found {
        writer.bulk(name);
        writer.bulk(value);
    }
    Ok(Next::Go)
}

fn settings(shared: &RespContext) -> Vec<(&'static str, String)> {
    let max_memory = match shared.decider.store_status() {
        StoreStatus::Local(usage) => usage.max_bytes,
        StoreStatus::Remote(_) => 0,
    };
    vec![
        ("appendonly", "no".into()),
        ("bind", shared.address.ip().to_string()),
        ("databases", "1".into()),
        ("maxclients", shared.clients.max.to_string()),
        ("maxmemory", max_memory.to_string()),
        ("port", shared.address.port().to_string()),
        ("proto-max-bulk-len", LIMITS.max_bulk.to_string()),
        ("save", String::new()),
        ("test-clock", if shared.test_clock { "yes" } else { "no" }.into()),
        ("timeout", shared.timeouts.idle.as_secs().to_string()),
    ]
}

/// Whether `text` matches `pattern`: `*` is any bytes, `?` any byte.
///
/// Only the last `*` is retried, which takes at most the product of both lengths.
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
    fn matches_wildcards_returns_whether_text_fits() {
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
