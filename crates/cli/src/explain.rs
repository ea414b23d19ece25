//! `policy`: explains policies.

use std::{io::Write, time::Duration};

use sluicegate_core::{
    Limit, Policy, as_micros,
    human::{span, units},
};
use sluicegate_simulator::periods;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn explain(policies: &[Policy], out: &mut impl Write) -> anyhow::Result<()> {
    for (index, policy) in policies.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        out.write_all(in_words(policy).as_bytes())?;
    }
    Ok(())
}

/// The canonical form and its meaning, for each limit, then for all together.
pub(crate) fn in_words(policy: &Policy) -> String {
    let mut out = format!("{policy}\n");
    let line = |out: &mut String, label: &str, text: &str| {
        out.push_str(&format!("  {label:<10} {text}\n"));
    };
    let limits = policy.limits();
    let spans = spans(policy);
    for (index, limit) in limits.iter().enumerate() {
        if limits.len() > 1 {
            out.push_str(&format!("\n  {}. {limit}\n", index + 1));
        }
        let described = limit.describe();
        let borrows = limit.borrow();
        line(&mut out, "at once", &described.at_once);
        line(&mut out, "sustained", &described.sustained);
        if limit.counts_holds() {
            let longest = span(as_micros(limit.rate().1));
            line(
                &mut out,
                "held",
                &format!("until it is settled, or for {longest} unless renewed"),
            );
        } else {
            let most = max_text(&spans, |span| Some(limit.max_admitted(span)));
            let more = if borrows { ", and what the last request borrows" } else { "" };
            line(&mut out, "at most", &format!("{most}{more}"));
        }
        if limit.is_queue() {
            let most = max_text(&spans, |span| limit.max_sent(span));
            line(&mut out, "sent", &format!("at most {most}"));
        }
        line(&mut out, "denied", &described.denied);
        if !borrows {
            let never = format!("more than {} at a time", units(limit.capacity().into()));
            line(&mut out, "never", &never);
        }
    }
    if limits.len() > 1 {
        out.push_str("\n  together: a request passes if every limit allows it, and otherwise takes from none\n");
        let least = limits.iter().map(Limit::capacity).min().unwrap_or(0);
        line(&mut out, "at once", &units(least.into()));
        let rates = || limits.iter().filter(|limit| !limit.counts_holds());
        let most = max_text(&spans, |span| rates().map(|limit| limit.max_admitted(span)).min());
        if !most.is_empty() {
            line(&mut out, "at most", &most);
        }
        line(&mut out, "denied", "waits until all of them allow it");
    }
    out
}

/// A second, each period and a day, shortest first, with their names.
fn spans(policy: &Policy) -> Vec<(u64, String)> {
    let mut spans = periods(policy);
    spans.extend([SECOND, DAY]);
    spans.sort_unstable();
    spans.dedup();
    let name = |micros| match micros {
        SECOND => "second".to_owned(),
        DAY => "day".to_owned(),
        other => span(as_micros(other)),
    };
    spans.into_iter().map(|micros| (as_micros(micros), name(micros))).collect()
}

/// `16 units in any second, 46 in any 1m, ...`.
fn max_text(spans: &[(u64, String)], max: impl Fn(u64) -> Option<u128>) -> String {
    let mut parts = Vec::new();
    for (micros, name) in spans {
        if let Some(count) = max(*micros) {
            let unit = match (parts.is_empty(), count) {
                (true, 1) => " unit",
                (true, _) => " units",
                (false, _) => "",
            };
            parts.push(format!("{count}{unit} in any {name}"));
        }
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests;
