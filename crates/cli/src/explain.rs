//! `policy`: what a policy allows, explained.

use std::{io::Write, time::Duration};

use sluicegate_core::{
    Align, FixedWindow, Gcra, GcraName, IntervalBucket, Limit, Policy, SlidingCounter, SlidingLog,
    Window,
};
use sluicegate_simulator::periods;

use crate::{
    promise::{as_micros, most_departed_in, most_in},
    words::{span, span_of, units},
};

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

/// The canonical form and what it means, limit by limit, then together.
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
        let (sustained, denied) = match limit {
            Limit::Gcra(limit) => gcra(limit),
            Limit::IntervalBucket(limit) => interval_bucket(limit),
            Limit::FixedWindow(limit) => fixed_window(limit),
            Limit::SlidingLog(limit) => sliding_log(limit),
            Limit::SlidingCounter(limit) => sliding_counter(limit),
        };
        let borrows = borrows(limit);
        line(&mut out, "at once", &at_once(limit));
        line(&mut out, "sustained", &sustained);
        let most = most(&spans, |span| Some(most_in(limit, span)));
        let more = if borrows { ", and what the last request borrows" } else { "" };
        line(&mut out, "at most", &format!("{most}{more}"));
        if most_departed_in(limit, 0).is_some() {
            let most = self::most(&spans, |span| most_departed_in(limit, span));
            line(&mut out, "sent", &format!("at most {most}"));
        }
        line(&mut out, "denied", &denied);
        if !borrows {
            let never = format!("more than {} at a time", units(limit.capacity().into()));
            line(&mut out, "never", &never);
        }
    }
    if limits.len() > 1 {
        out.push_str("\n  together: a request passes if every limit allows it, and otherwise takes from none\n");
        let least = limits.iter().map(Limit::capacity).min().unwrap_or(0);
        line(&mut out, "at once", &units(least.into()));
        let most = most(&spans, |span| limits.iter().map(|limit| most_in(limit, span)).min());
        line(&mut out, "at most", &most);
        line(&mut out, "denied", "waits until all of them allow it");
    }
    out
}

/// A second, each period and a day, shortest first, with what to call them.
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
fn most(spans: &[(u64, String)], most: impl Fn(u64) -> Option<u128>) -> String {
    let mut parts = Vec::new();
    for (micros, name) in spans {
        if let Some(count) = most(*micros) {
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

const fn borrows(limit: &Limit) -> bool {
    match limit {
        Limit::Gcra(limit) => limit.borrow(),
        Limit::IntervalBucket(limit) => limit.borrow(),
        Limit::FixedWindow(_) | Limit::SlidingLog(_) | Limit::SlidingCounter(_) => false,
    }
}

fn at_once(limit: &Limit) -> String {
    let capacity = units(limit.capacity().into());
    match limit {
        Limit::Gcra(limit) if limit.name() == GcraName::LeakyQueue => {
            format!("{capacity} into the queue, when it is empty")
        }
        limit if borrows(limit) => {
            format!("{capacity} after idling; one request may take more, if 1 unit is available")
        }
        Limit::Gcra(_) | Limit::IntervalBucket(_) => format!("{capacity} after idling"),
        Limit::FixedWindow(_) | Limit::SlidingLog(_) | Limit::SlidingCounter(_) => capacity,
    }
}

/// What is sustained, and what a denied client waits for.
fn gcra(limit: &Gcra) -> (String, String) {
    let (n, period) = (limit.limit().into(), as_micros(limit.period()));
    let one = span_of(period, n);
    let pace = match limit.name() {
        GcraName::LeakyQueue => "one goes each",
        GcraName::Gcra | GcraName::TokenBucket | GcraName::LeakyBucket => "one each",
    };
    let sustained = format!("{} per {}: {pace} {one}", units(n), span(period));
    if limit.borrow() {
        return (
            sustained,
            format!("waits until what was borrowed is repaid, one unit each {one}"),
        );
    }
    let full = u128::from(limit.burst()) * u128::from(period);
    let full = u64::try_from(full.div_ceil(u128::from(n))).unwrap_or(u64::MAX);
    (sustained, waits_at_most(&[(1, one), (limit.burst(), span(full))]))
}

fn interval_bucket(limit: &IntervalBucket) -> (String, String) {
    let (n, period) = (limit.limit(), as_micros(limit.period()));
    let sustained =
        format!("{} per {}: all of them each {}", units(n.into()), span(period), span(period));
    if limit.borrow() {
        return (sustained, "waits until what was borrowed is repaid".to_owned());
    }
    let steps = u64::from(limit.burst().div_ceil(n));
    (sustained, waits_at_most(&[(1, span(period)), (limit.burst(), span(steps * period))]))
}

fn fixed_window(limit: &FixedWindow) -> (String, String) {
    let n = units(limit.limit().into());
    let (window, end) = match limit.window() {
        Window::Span { period, align } => {
            let period = span(as_micros(period));
            let from = match align {
                Align::First => "that its first request opens",
                Align::Clock => "on the clock",
            };
            (format!("window of {period} {from}"), format!("{period} at most"))
        }
        Window::Calendar { unit, zone } => {
            (format!("{unit} of the calendar in {zone}"), format!("the next {unit}"))
        }
    };
    let counted = match limit.count_all() {
        true => "; denied requests count too: they use up the window, but do not extend it",
        false => "",
    };
    (format!("{n} each {window}"), format!("waits until the window ends, {end}{counted}"))
}

fn sliding_log(limit: &SlidingLog) -> (String, String) {
    let period = span(as_micros(limit.period()));
    let counted = counting(limit.count_all());
    (
        format!("{} per {period}", units(limit.limit().into())),
        format!("waits until enough of the units that count are {period} old{counted}"),
    )
}

fn sliding_counter(limit: &SlidingCounter) -> (String, String) {
    let micros = as_micros(limit.period());
    let period = span(micros);
    let counted = counting(limit.count_all());
    (
        format!("{} per {period}, by an estimate from two windows", units(limit.limit().into())),
        format!("waits until the estimate has fallen, {} at most{counted}", span(2 * micros)),
    )
}

const fn counting(all: bool) -> &'static str {
    if all { "; denied requests count too, and extend the wait" } else { "" }
}

/// `waits 2s at most for 1 unit, 32s for 16`.
fn waits_at_most(waits: &[(u32, String)]) -> String {
    let mut text = String::new();
    for (index, (count, wait)) in waits.iter().enumerate() {
        match index {
            0 => text = format!("waits {wait} at most for {}", units((*count).into())),
            _ if *count > 1 => text.push_str(&format!(", {wait} for {count}")),
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests;
