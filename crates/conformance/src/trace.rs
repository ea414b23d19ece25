//! Readable traces: operations on one key, line by line, with the expected results.
//!
//! ```text
//! # a spent burst returns one unit per interval
//! policy gcra:10/1s:burst=3
//! 0ms take 3 -> allow remaining=0 reset=300ms
//! 99ms take 1 -> deny retry=1ms
//! ```
//!
//! A line that begins with `#` names a new case with a new key. Times are offsets from a whole minute
//! of the clock, or dates (`@2026-03-29T12:00Z`). The arrow is followed by the outcome and the expected
//! fields: `limit`, `remaining`, `retry` (or `never`), `reset`, `delay`, `binding`.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Timestamp};

use crate::{CoreSubject, Invocation, Subject, compare};

/// Start of all offsets: a whole minute.
const START: u64 = 1_700_000_040_000_000;

/// The traces of this crate, with their names: the behaviour that users expect of a limiter.
const TRACES: [(&str, &str); 5] = [
    ("buckets", include_str!("../traces/buckets.txt")),
    ("windows", include_str!("../traces/windows.txt")),
    ("logs and counters", include_str!("../traces/logs-and-counters.txt")),
    ("several limits", include_str!("../traces/several-limits.txt")),
    ("changes of rule", include_str!("../traces/changes-of-rule.txt")),
];

/// Runs every trace of the kit.
///
/// # Panics
/// At the first line with another result.
pub fn check_traces(subject: &mut impl Subject) {
    for (name, text) in TRACES {
        check_script(subject, name, text);
    }
}

/// The names of all cases of the kit.
pub fn cases() -> impl Iterator<Item = &'static str> {
    let lines = TRACES.iter().flat_map(|(_, text)| text.lines());
    lines.filter_map(|line| line.strip_prefix('#').map(str::trim))
}

/// Runs the case of the kit with this name.
///
/// # Panics
/// At the first line with another result, and if there is no such case.
pub fn check_case(subject: &mut impl Subject, name: &str) {
    let heading = format!("# {name}\n");
    let found = TRACES.iter().find_map(|(_, text)| text.split_once(&heading));
    let (_, rest) = found.unwrap_or_else(|| panic!("no case is named `{name}`"));
    let end = rest.find("\n#").unwrap_or(rest.len());
    check_script(subject, name, &rest[..end]);
}

/// Runs one trace: every result must equal that of the line and that of the core.
///
/// # Panics
/// At the first line with another result, and at an invalid line.
pub fn check_script(subject: &mut impl Subject, name: &str, text: &str) {
    let mut core = CoreSubject::default();
    let mut case = String::new();
    let mut policy: Option<Policy> = None;
    for (number, line) in text.lines().enumerate() {
        let location = format!("{name}, line {}, `{case}`: `{line}`", number + 1);
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        if let Some(title) = line.strip_prefix('#') {
            title.trim().clone_into(&mut case);
            policy = None;
        } else if let Some(text) = line.strip_prefix("policy ") {
            policy = Some(text.parse().unwrap_or_else(|error| panic!("{location}: {error}")));
        } else {
            let policy = policy.as_ref().unwrap_or_else(|| panic!("{location}: no policy"));
            let key = format!("{name}:{case}").into_bytes();
            let checked = check_line(&mut core, subject, &key, policy, line);
            checked.unwrap_or_else(|fault| panic!("{location}: {fault}"));
        }
    }
}

fn check_line(
    core: &mut CoreSubject,
    subject: &mut impl Subject,
    key: &[u8],
    policy: &Policy,
    line: &str,
) -> Result<(), String> {
    let (invocation, answer) = line.split_once("->").ok_or("no `->`")?;
    let mut words = invocation.split_whitespace();
    let now = time(words.next().ok_or("no time")?)?;
    let operation = operation(&words.collect::<Vec<_>>())?;

    let invocation = Invocation { key, policy, now, operation };
    let found = subject.apply(invocation);
    compare(&core.apply(invocation), &found)?;
    if answer.trim() == "error" {
        return found
            .map_or(Ok(()), |decision| Err(format!("expected an error, found {decision:?}")));
    }
    let found = found?.to_integers();
    for word in answer.split_whitespace() {
        let (field, expected) = word.split_once('=').unwrap_or((word, ""));
        let (index, expected) = match field {
            "allow" => (0, 1),
            "deny" => (0, 0),
            "limit" => (1, number(expected)?),
            "remaining" => (2, number(expected)?),
            "retry" => (3, micros(expected)?),
            "never" => (3, -1),
            "reset" => (4, micros(expected)?),
            "delay" => (5, micros(expected)?),
            "binding" => (6, number(expected)?),
            _ => return Err(format!("unknown field `{field}`")),
        };
        if found[index] != expected {
            return Err(format!("{field} should be {expected} and is {}", found[index]));
        }
    }
    Ok(())
}

fn operation(words: &[&str]) -> Result<Operation, String> {
    let cost = match words.get(1) {
        None => 1,
        Some(word) => u32::try_from(number(word)?).map_err(|error| error.to_string())?,
    };
    match (words.first().copied(), words.get(2)) {
        (Some("take"), None) => Ok(Operation::Take(cost)),
        (Some("peek"), None) => Ok(Operation::Peek(cost)),
        (Some("charge"), None) => Ok(Operation::Charge(cost)),
        (Some("refund"), None) => Ok(Operation::Refund(cost)),
        (Some("reset"), None) => Ok(Operation::Reset),
        (Some("reserve"), Some(wait)) => {
            let wait = u64::try_from(micros(wait)?).map_err(|error| error.to_string())?;
            Ok(Operation::Reserve { cost, max_wait: Duration::from_micros(wait) })
        }
        _ => Err(format!("unknown operation {words:?}")),
    }
}

fn time(word: &str) -> Result<Timestamp, String> {
    let micros = match word.strip_prefix('@') {
        Some(date) => {
            let date: jiff::Timestamp =
                date.parse().map_err(|_| format!("`{date}` is not a date"))?;
            u64::try_from(date.as_microsecond()).map_err(|error| error.to_string())?
        }
        None => START + u64::try_from(micros(word)?).map_err(|error| error.to_string())?,
    };
    Timestamp::from_micros(micros).map_err(|error| error.to_string())
}

fn number(word: &str) -> Result<i64, String> {
    word.parse().map_err(|_| format!("`{word}` is not a number"))
}

/// A span like `1s`, `99.999ms`, `2h`, `0`.
fn micros(word: &str) -> Result<i64, String> {
    let split = word.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(word.len());
    let (count, unit) = word.split_at(split);
    let unit = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        "" if count == "0" => 1,
        _ => return Err(format!("`{word}` is not a span")),
    };
    let (whole, part) = count.split_once('.').unwrap_or((count, ""));
    let places = u32::try_from(part.len()).map_err(|error| error.to_string())?;
    let part = if part.is_empty() { 0 } else { number(part)? };
    Ok(number(whole)? * unit + part * unit / 10_i64.pow(places))
}
