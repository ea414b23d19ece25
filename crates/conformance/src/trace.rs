//! Readable traces: operations on one key, line by line, with the expected results.
//!
//! ```text
//! # gcra: a spent burst returns one unit per interval
//! policy gcra:10/1s:burst=3
//! 0ms take 3 -> allow remaining=0 reset=300ms
//! 99ms take 1 -> deny retry=1ms
//! ```
//!
//! A line that begins with `#` names a new case with a new key. Times are offsets from a whole minute
//! of the clock, or dates (`@2026-03-29T12:00Z`). The arrow is followed by the outcome and the expected
//! fields: `limit`, `remaining`, `retry` (or `never`), `reset`, `delay`, `binding`. Operations on holds are
//! `hold ID [COST] [ttl=SPAN]`, `settle ID [USED]` and `renew ID [ttl=SPAN]`.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Timestamp};

use crate::{CoreSubject, Invocation, Subject, compare};

/// Start of all offsets: a whole minute.
const START: u64 = 1_700_000_040_000_000;

const HOLD_OPERATIONS: [&str; 3] = ["hold", "settle", "renew"];

macro_rules! traces {
    ($($name:literal,)*) => { &[$(($name, include_str!(concat!("../traces/", $name, ".txt"))),)*] };
}

/// The traces of this crate, with their names: the behaviour that users expect of a limiter.
const TRACES: &[(&str, &str)] = traces![
    "gcra",
    "token-bucket",
    "leaky-bucket",
    "leaky-queue",
    "interval-bucket",
    "fixed-window",
    "sliding-log",
    "sliding-counter",
    "concurrency",
    "operations",
    "several-limits",
    "policy-changes",
    "holds",
];

/// Runs every case of the kit, but those with holds.
///
/// # Panics
/// At the first line with another result.
pub fn check_traces(subject: &mut impl Subject) {
    for case in all_cases().filter(|case| !case.has_holds()) {
        case.check(subject);
    }
}

/// Runs every case with holds.
///
/// # Panics
/// At the first line with another result.
pub fn check_hold_traces(subject: &mut impl Subject) {
    for case in all_cases().filter(Case::has_holds) {
        case.check(subject);
    }
}

/// The names of all cases of the kit, but those with holds.
pub fn cases() -> impl Iterator<Item = &'static str> {
    all_cases().filter(|case| !case.has_holds()).map(|case| case.name)
}

/// Runs the case of the kit with this name: every result must equal that of the line and that of the core.
///
/// # Panics
/// At the first line with another result, and if there is no such case.
pub fn check_case(subject: &mut impl Subject, name: &str) {
    let found = all_cases().find(|case| case.name == name);
    found.unwrap_or_else(|| panic!("no case is named `{name}`")).check(subject);
}

/// One case of a trace, with a key of its own.
struct Case {
    trace: &'static str,
    name: &'static str,
    lines: &'static str,
}

fn all_cases() -> impl Iterator<Item = Case> {
    TRACES.iter().flat_map(|&(trace, text)| {
        let text = text.strip_prefix("# ").expect("a trace begins with the name of a case");
        text.split("\n# ").map(move |case| {
            let (name, lines) = case.split_once('\n').expect("a case has lines");
            Case { trace, name, lines }
        })
    })
}

impl Case {
    /// Whether some operation is one on a hold.
    fn has_holds(&self) -> bool {
        let mut words = self.lines.lines().filter_map(|line| line.split_whitespace().nth(1));
        words.any(|word| HOLD_OPERATIONS.contains(&word))
    }

    fn check(&self, subject: &mut impl Subject) {
        let Self { trace, name, lines } = self;
        let key = format!("{trace}:{name}").into_bytes();
        let mut core = CoreSubject::default();
        let mut policy: Option<Policy> = None;
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let location = format!("{trace}.txt, `{name}`: `{line}`");
            if let Some(text) = line.strip_prefix("policy ") {
                policy = Some(text.parse().unwrap_or_else(|error| panic!("{location}: {error}")));
                continue;
            }
            let policy = policy.as_ref().unwrap_or_else(|| panic!("{location}: no policy"));
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

fn operation<'a>(words: &[&'a str]) -> Result<Operation<'a>, String> {
    match words {
        [name, id, options @ ..] if HOLD_OPERATIONS.contains(name) => {
            hold_operation(name, id.as_bytes(), options)
        }
        _ => unit_operation(words),
    }
}

fn hold_operation<'a>(name: &str, id: &'a [u8], options: &[&str]) -> Result<Operation<'a>, String> {
    let (mut units, mut ttl) = (None, None);
    for option in options {
        match option.strip_prefix("ttl=") {
            Some(span) => ttl = Some(span_of(span)?),
            None => units = Some(u32::try_from(number(option)?).map_err(|it| it.to_string())?),
        }
    }
    match (name, units, ttl) {
        ("hold", cost, ttl) => Ok(Operation::Hold { id, cost: cost.unwrap_or(1), ttl }),
        ("settle", used, None) => Ok(Operation::Settle { id, used }),
        ("renew", None, ttl) => Ok(Operation::Renew { id, ttl }),
        _ => Err(format!("unknown options {options:?}")),
    }
}

fn unit_operation(words: &[&str]) -> Result<Operation<'static>, String> {
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
        (Some("reserve"), Some(wait)) => Ok(Operation::Reserve { cost, max_wait: span_of(wait)? }),
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

fn span_of(word: &str) -> Result<Duration, String> {
    let micros = u64::try_from(micros(word)?).map_err(|error| error.to_string())?;
    Ok(Duration::from_micros(micros))
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
