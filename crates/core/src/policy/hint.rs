//! Guesses at the meaning of an invalid limit.

use crate::{
    algorithm::{ALGORITHMS, Limit},
    parameters, period,
    spelling::{closest, one_of, plain},
    text::did_you_mean,
};

/// The text between a number of requests and its period, in the limits of other tools.
const REQUESTS: [&str; 6] = ["requests", "request", "reqs", "req", "r", ""];

/// The text after "expected" for `text`, which has no colon.
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
            parameters::is_period(micros).then_some(())?;
            (period::format(micros), period::format(micros))
        }
    };
    Some((format!("gcra:{count}/{smooth}"), format!("fixed-window:{count}/{window}")))
}

/// The text after "expected" for the unknown algorithm `name`.
pub(super) fn algorithm(name: &str) -> String {
    let algorithms = &Limit::names().collect::<Vec<_>>();
    if let Some(known) = closest(name, algorithms) {
        return did_you_mean(&[known]);
    }
    let word = plain(name);
    let has_word = |words: &&'static [&str]| words.iter().any(|other| other.as_bytes() == word);
    let meant = ALGORITHMS.iter().filter(|it| has_word(&it.other_words)).flat_map(|it| it.names);
    let meant: Vec<_> = meant.map(|(name, _)| *name).collect();
    if !meant.is_empty() {
        return did_you_mean(&meant);
    }
    // A part of a name: `leaky`, `bucket`, `window`.
    if word.len() >= 3 {
        let contains = |known: &&&str| plain(known).windows(word.len()).any(|it| it == word);
        let parts: Vec<_> = algorithms.iter().filter(contains).copied().collect();
        if !parts.is_empty() {
            return did_you_mean(&parts);
        }
    }
    format!("expected {}", one_of(algorithms))
}
