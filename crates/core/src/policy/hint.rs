//! What was probably meant by the text of a limit that is not one.

use super::period;
use crate::{
    algorithm::{ALGORITHMS, Limit},
    spelling::{closest, plain},
};

/// What stands between a number of requests and its period, in the limits of other tools.
const REQUESTS: [&str; 6] = ["requests", "request", "reqs", "req", "r", ""];

/// What is expected in place of `text`, which has no colon.
pub(super) fn limit(text: &str) -> String {
    if let Some((smooth, window)) = rate(text) {
        return format!("expected an algorithm, such as `{smooth}` or `{window}`");
    }
    if let Some(name) = Limit::names().find(|name| name.eq_ignore_ascii_case(text)) {
        return format!("expected a rate, such as `{name}:30/1m`");
    }
    "expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`".to_owned()
}

/// The policies that a rate without an algorithm may mean: `100/minute`, `30 per 1 hour`, `10r/s`,
/// `10rps`.
fn rate(text: &str) -> Option<(String, String)> {
    const MAX_LENGTH: usize = 40;
    if text.len() > MAX_LENGTH {
        return None;
    }
    let joined: String = text.split(' ').collect::<String>().to_ascii_lowercase();
    let digits = joined.bytes().take_while(u8::is_ascii_digit).count();
    let (count, rest) = joined.split_at(digits);
    let count = count.parse::<u32>().ok().filter(|count| *count > 0)?;
    let behind = |unit: &&str| {
        let rest = rest.strip_prefix(*unit)?;
        rest.strip_prefix('/').or_else(|| rest.strip_prefix("per"))
    };
    let period = match rest {
        "rps" | "rpm" | "rph" | "rpd" => &rest[2..],
        _ => REQUESTS.iter().find_map(behind)?,
    };
    let (smooth, window) = match period::calendar(period) {
        Some((word, duration)) => (duration.to_owned(), word.to_owned()),
        None => {
            let micros = period::parse(period)?;
            crate::algorithm::is_period(micros).then_some(())?;
            (period::format(micros), period::format(micros))
        }
    };
    Some((format!("gcra:{count}/{smooth}"), format!("fixed-window:{count}/{window}")))
}

/// What is expected in place of `name`, which no algorithm has.
pub(super) fn algorithm(name: &str) -> String {
    let algorithms = &Limit::names().collect::<Vec<_>>();
    if let Some(known) = closest(name, algorithms) {
        return did_you_mean(&[known]);
    }
    let plain = plain(name);
    let has_word = |words: &&'static [&str]| words.iter().any(|word| word.as_bytes() == plain);
    let meant = ALGORITHMS.iter().filter(|it| has_word(&it.other_words)).flat_map(|it| it.names);
    let meant: Vec<_> = meant.map(|(name, _)| *name).collect();
    if !meant.is_empty() {
        return did_you_mean(&meant);
    }
    // A part of a name: `leaky`, `bucket`, `window`.
    if plain.len() >= 3 {
        let contains = |known: &&&str| {
            crate::spelling::plain(known).windows(plain.len()).any(|it| it == plain)
        };
        let parts: Vec<_> = algorithms.iter().filter(contains).copied().collect();
        if !parts.is_empty() {
            return did_you_mean(&parts);
        }
    }
    format!("expected {}", one_of(algorithms))
}

/// What is expected in place of `name`, which is not an option of an algorithm with the options
/// `known`.
pub(super) fn option(name: &str, known: &[&'static str]) -> String {
    if let Some(option) = closest(name, known) {
        return did_you_mean(&[option]);
    }
    let is_size = |it: &&&str| ["burst", "capacity"].contains(&**it);
    match known.iter().find(is_size) {
        Some(size)
            if (1..=10).contains(&name.len()) && name.bytes().all(|it| it.is_ascii_digit()) =>
        {
            did_you_mean(&[&format!("{size}={name}")])
        }
        _ => format!("expected {}", one_of(known)),
    }
}

/// An example of an option with a value.
pub(super) fn example(option: &str) -> &'static str {
    match option {
        "align" => "align=clock",
        "burst" => "burst=16",
        "capacity" => "capacity=16",
        "count" => "count=all",
        "keep" => "keep=1h",
        "keep-max" => "keep-max=1000",
        "refill" => "refill=interval",
        _ => "tz=Asia/Shanghai",
    }
}

fn did_you_mean(words: &[&str]) -> String {
    format!("did you mean {}?", one_of(words))
}

/// `a`, `b` or `c`, each in backquotes.
fn one_of(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match words.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.concat(),
    }
}
