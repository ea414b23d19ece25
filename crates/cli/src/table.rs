//! What a trace came to, as a table for people.

use std::{io::Write, time::Duration};

use sluicegate_core::Policy;
use sluicegate_simulator::{MAX_BUSY_KEYS, Report};

use crate::{percent::percent, words::span};

/// Keys that are shown.
const BUSIEST: usize = 10;
/// Bytes of a key that are shown.
const KEY: usize = 40;

pub(crate) fn print(
    policy: Option<&Policy>,
    report: &Report,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if let Some(policy) = policy {
        writeln!(out, "{policy}\n")?;
    }
    let (requests, allowed, denied) = (report.requests(), report.allowed(), report.denied());
    writeln!(out, "requests      {requests:>12}")?;
    writeln!(out, "allowed       {allowed:>12}  {}", share(allowed, requests))?;
    writeln!(out, "denied        {denied:>12}  {}", share(denied, requests))?;
    if report.others() > 0 {
        writeln!(
            out,
            "other events  {:>12}  peek, charge, refund and reset are no requests",
            report.others()
        )?;
    }
    writeln!(out, "longest delay {:>12}\n", words(report.longest_delay()))?;

    writeln!(out, "most in any   arrived, passed      departed")?;
    for (admitted, departed) in report.most_admitted().zip(report.most_departed()) {
        let length = words(admitted.span);
        writeln!(out, "{length:<12}  {:>15}  {:>12}", admitted.count, departed.count)?;
    }

    let (keys, missed) = report.keys().map_or_else(Default::default, |it| it.busiest(BUSIEST));
    if !keys.is_empty() {
        writeln!(out, "\n{:<KEY$}  {:>12}  {:>12}", "busiest keys", "requests", "denied")?;
    }
    for busy in keys {
        writeln!(out, "{:<KEY$}  {:>12}  {:>12}", shown(busy.key), busy.requests, busy.denied)?;
    }
    if missed > 0 {
        writeln!(
            out,
            "There are more than {MAX_BUSY_KEYS} keys: each count may be up to {missed} too low."
        )?;
    }
    Ok(())
}

pub(crate) fn words(duration: Duration) -> String {
    span(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// `part` of `whole` in per cent.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    format!("{:>7}", percent(part, whole))
}

/// A key on a line, cut where it is long.
pub(crate) fn shown(key: &[u8]) -> String {
    let whole = match str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    };
    match whole.char_indices().nth(KEY) {
        Some(_) => whole.chars().take(KEY - 1).chain(['…']).collect(),
        None => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_on_their_line() {
        assert_eq!(shown("Zoë".as_bytes()), "Zoë");
        assert_eq!(shown(b"a\nb\xff"), "a\\nb\\xff");
        assert_eq!(shown("é".repeat(41).as_bytes()), "é".repeat(39) + "…");
        assert_eq!(shown("é".repeat(40).as_bytes()), "é".repeat(40));
    }
}
