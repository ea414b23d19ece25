//! `SG.KEYS cursor [COUNT count] [MATCH prefix*] [DENIED]`: keys that the server knows by name.

use sluicegate_commands::quote;
use sluicegate_resp::Writer;

use super::context::RespContext;
use crate::stats::{KeyFilter, KeyPage};

/// Keys that one call examines, unless it says otherwise.
const COUNT: usize = 100;
/// The most that it may examine.
const MAX_COUNT: usize = 1000;

/// Answers `[next cursor, [key ...]]`, as `SCAN` does.
pub(super) fn keys(
    shared: &RespContext,
    arguments: &[&[u8]],
    writer: &mut Writer<'_>,
) -> Result<(), String> {
    let [cursor, options @ ..] = arguments else {
        return Err(
            "ERR missing cursor: expected SG.KEYS cursor [COUNT count] [MATCH prefix*] [DENIED]"
                .into(),
        );
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
    let KeyPage { next, keys } = (shared.list_keys)(cursor, count, filter)?;
    writer.array(2);
    writer.bulk(next.to_string());
    writer.array(keys.len());
    keys.iter().for_each(|key| writer.bulk(key));
    Ok(())
}

fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// What stands before a `*` at the end; no other pattern is known.
fn prefix(pattern: &[u8]) -> Option<&[u8]> {
    let prefix = pattern.strip_suffix(b"*")?;
    (!prefix.iter().any(|byte| b"*?[\\".contains(byte))).then_some(prefix)
}
