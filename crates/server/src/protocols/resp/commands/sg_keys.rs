//! `SG.KEYS cursor [COUNT count] [MATCH prefix*] [DENIED]`: lists the keys that the server samples.

use sluicegate_commands::{Argument, ArgumentKind, quote};

use super::spec::optional;
use crate::{
    protocols::resp::{
        call::{CallResult, CommandCall, Next, ServerCommand, command},
        session::WORK,
    },
    stats::{KeyFilter, KeyPage},
};

/// Default of `COUNT`: keys that one call examines.
const COUNT: usize = 100;
/// Upper bound on `COUNT`.
const MAX_COUNT: usize = 1000;

pub(super) const SG_KEYS: ServerCommand = command(
    "SG.KEYS",
    -2,
    &["readonly"],
    &[
        Argument::new("cursor", ArgumentKind::Integer),
        Argument::option("COUNT", "count"),
        Argument { token: Some("MATCH"), ..optional("prefix") },
        optional("DENIED"),
    ],
    "Lists the keys that the server samples.",
    run,
)
.of_server()
.with_work(WORK);

/// The reply is `[next cursor, [key ...]]`, as that of `SCAN`.
fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let [cursor, options @ ..] = call.arguments_after_name() else {
        return Err(call.arity_error());
    };
    let cursor = number(cursor).ok_or_else(|| {
        format!(
            "ERR invalid cursor `{}`: expected 0 or the cursor of the last reply",
            quote(cursor)
        )
    })?;
    let mut count = COUNT;
    let mut filter = KeyFilter::default();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"DENIED") {
            filter.denied = true;
        } else if option.eq_ignore_ascii_case(b"COUNT") {
            let text = *options.next().ok_or("ERR missing value of COUNT: expected 1 to 1000")?;
            let given = number(text).and_then(|it| usize::try_from(it).ok());
            count = given.filter(|it| (1..=MAX_COUNT).contains(it)).ok_or_else(|| {
                format!("ERR invalid COUNT `{}`: expected 1 to {MAX_COUNT}", quote(text))
            })?;
        } else if option.eq_ignore_ascii_case(b"MATCH") {
            let text = *options.next().ok_or("ERR missing value of MATCH: expected prefix*")?;
            filter.prefix = prefix(text).ok_or_else(|| {
                format!(
                    "ERR invalid MATCH `{}`: expected a prefix and `*`, as `user:*`",
                    quote(text)
                )
            })?;
        } else {
            let option = quote(option);
            return Err(format!("ERR unknown option `{option}`: expected COUNT, MATCH or DENIED"));
        }
    }
    let list_keys = &call.session.shared.list_keys;
    let KeyPage { next, keys } = list_keys(cursor, count, filter)?;
    let mut writer = call.writer();
    writer.array(2);
    writer.bulk(next.to_string());
    writer.array(keys.len());
    keys.iter().for_each(|key| writer.bulk(key));
    Ok(Next::Go)
}

fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// The bytes before a `*` at the end. No other pattern is supported.
fn prefix(pattern: &[u8]) -> Option<&[u8]> {
    let prefix = pattern.strip_suffix(b"*")?;
    (!prefix.iter().any(|byte| b"*?[\\".contains(byte))).then_some(prefix)
}
