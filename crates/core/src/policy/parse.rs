//! `ALGORITHM:N/PERIOD[:option[=value]]...`, joined by commas, from left to right; and guesses at the meaning of an invalid limit.

use crate::{
    algorithm::{ALGORITHMS, Limit},
    parameters, period,
    spelling::{closest, one_of, plain},
    text::{LimitText, MAX_LIMITS, PartPosition, PolicyError, TextError, TextPart, did_you_mean},
};

pub(super) fn limits(text: &str) -> Result<Vec<Limit>, PolicyError> {
    let mut limits = Vec::new();
    let mut offset = 0;
    for part in text.split(',') {
        let place = PartPosition { limit: limits.len() + 1, offset };
        if limits.len() == MAX_LIMITS {
            return Err(PolicyError::count(text.split(',').count()));
        }
        let limit = limit(part, place).map_err(|error| {
            let behind = text.get(offset + part.len()..).unwrap_or_default();
            match joined(part, behind) {
                Some((at, message)) => PolicyError::new(message, place.limit, offset + at),
                None => error,
            }
        });
        let several = part.len() < text.len();
        limits.push(limit.map_err(|it| if several { it.among_several() } else { it })?);
        offset += part.len() + 1;
    }
    Ok(limits)
}

fn limit(text: &str, place: PartPosition) -> Result<Limit, PolicyError> {
    let whole = TextPart { text, place };
    let Some((name, rest)) = whole.split(':') else {
        let (quoted, expected) = (whole.quoted(), limit_hint(text));
        return Err(whole.error(format!("invalid policy {quoted}: {expected}")));
    };
    let mut named = ALGORITHMS.iter().filter_map(|algorithm| {
        let mut names = algorithm.names.iter();
        let found = names.find(|(word, _)| word.eq_ignore_ascii_case(name.text));
        found.map(|&(word, options)| (word, options, algorithm.parse))
    });
    let Some((word, known, parse)) = named.next() else {
        let (quoted, expected) = (name.quoted(), algorithm_hint(name.text));
        return Err(name.error(format!("unknown algorithm {quoted}: {expected}")));
    };
    let (rate, options) = match rest.split(':') {
        Some((rate, options)) => (rate, Some(options)),
        None => (rest, None),
    };
    let Some((units, period)) = rate.split('/') else {
        let (quoted, expected) = (rate.quoted(), rate_hint(word));
        return Err(rate.error(format!("invalid rate {quoted}: {expected}")));
    };
    let text = LimitText::read(word, (units, period), options, known)?;
    let others = named.map(|(.., parse)| parse);
    let mut parsed =
        std::iter::once(parse).chain(others).filter_map(|parse| parse(&text).transpose());
    let limit = parsed.next().expect("one algorithm of each name takes every form");
    limit.map_err(|error| match error {
        TextError::Policy(error) => error,
        TextError::Limit(error) => text.invalid_part(&error).error(error.to_string()),
    })
}

/// The text between a number of requests and its period, in the limits of other tools.
const REQUESTS: [&str; 6] = ["requests", "request", "reqs", "req", "r", ""];

/// The text after "expected" for `text`, which has no colon.
fn limit_hint(text: &str) -> String {
    if let Some((smooth, window)) = rate(text) {
        return format!("expected an algorithm, such as `{smooth}` or `{window}`");
    }
    if let Some(name) = Limit::names().find(|name| name.eq_ignore_ascii_case(text)) {
        let example = if name == "concurrency" { "5/30s" } else { "30/1m" };
        return format!("expected a rate, such as `{name}:{example}`");
    }
    if text.split_once('=').is_some_and(|(name, _)| OPTIONS.contains(&name)) {
        return "expected an option after `:`, such as `gcra:30/1m:burst=16`".to_owned();
    }
    if text.starts_with('@') {
        return "expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`; only a server knows the names in its rules files"
            .to_owned();
    }
    "expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`".to_owned()
}

/// The text after "expected" for a rate of an algorithm.
fn rate_hint(algorithm: &str) -> &'static str {
    match algorithm {
        "concurrency" => {
            "expected N/PERIOD, such as `5/30s`, where the period is the longest lifetime of a hold"
        }
        _ => "expected N/PERIOD, such as `30/1m`",
    }
}

/// Where an invalid limit is joined to another part by other characters than `,` or `:`, and its error. `behind` is the
/// rest of the policy, from the comma after the limit on.
fn joined(limit: &str, behind: &str) -> Option<(usize, String)> {
    if let Some(found) = thousands(limit, behind).or_else(|| at_the_ends(limit)) {
        return Some(found);
    }
    // A limit with its options is shorter. Clients send longer texts, and each character is followed by a look ahead.
    let limit = &limit[..limit.floor_char_boundary(MAX_LIMIT)];
    for (at, char) in limit.char_indices() {
        let rest = limit[at + char.len_utf8()..].trim_start();
        let is_separator = char == ' ' || ";|&+".contains(char);
        let word = rest.split([':', '=', ' ']).next().unwrap_or_default();
        let is_limit = rest[word.len()..].starts_with(':')
            && Limit::names().any(|name| name.eq_ignore_ascii_case(word));
        if is_separator && at > 0 && is_limit {
            return Some((
                at,
                format!("invalid separator `{char}`: expected `,` between two limits"),
            ));
        }
        let is_option = OPTIONS.contains(&word)
            && (rest.len() == word.len() || rest[word.len()..].starts_with(['=', ' ']));
        if is_separator && is_option {
            return Some((
                at,
                format!(
                    "invalid separator `{char}`: expected `:` before an option, without spaces"
                ),
            ));
        }
        if let Some((_, plain)) = WIDE.iter().find(|(wide, _)| *wide == char) {
            return Some((at, format!("invalid character `{char}`: expected `{plain}`")));
        }
    }
    let space = [" /", ": "].into_iter().find_map(|it| limit.find(it));
    if let Some(space) = space {
        return Some((
            space,
            "invalid space: expected a policy without spaces, such as `gcra:30/1m`".to_owned(),
        ));
    }
    abbreviated(limit).or_else(|| offset_of_zone(limit))
}

/// A number with commas between its thousands: `gcra:1,000/1s`.
fn thousands(limit: &str, behind: &str) -> Option<(usize, String)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let start = limit.rfind(':').map_or(0, |colon| colon + 1);
    let first = &limit[start..];
    if !(1..=3).contains(&first.len()) || digits(first) < first.len() {
        return None;
    }
    let (mut number, mut rest) = (first.to_owned(), behind);
    while let Some(group) = rest.strip_prefix(',').filter(|it| digits(it) == 3) {
        number.push_str(&group[..3]);
        rest = &group[3..];
    }
    if rest.len() == behind.len() || !rest.starts_with('/') {
        return None;
    }
    let text = format!("{first}{}", &behind[..behind.len() - rest.len()]);
    Some((start, format!("invalid limit `{text}`: expected it without commas: `{number}`")))
}

/// Spaces and quotes around a limit.
fn at_the_ends(limit: &str) -> Option<(usize, String)> {
    let inner = limit.trim();
    let is_space = inner.len() < limit.len() && !inner.is_empty();
    if is_space {
        let before = limit.len() - limit.trim_start().len();
        let at = if before > 0 { 0 } else { inner.len() };
        return Some((at, "invalid space: expected a policy without spaces".to_owned()));
    }
    let last = inner.char_indices().next_back();
    let quote =
        inner.char_indices().next().into_iter().chain(last).find(|it| QUOTES.contains(it.1));
    let (at, quote) = quote?;
    Some((at, format!("invalid character `{quote}`: expected a policy without quotes")))
}

/// A whole number in another form: `1k`, `1e3`, `1_000`.
fn abbreviated(limit: &str) -> Option<(usize, String)> {
    let (algorithm, rest) = limit.split_once(':')?;
    Limit::names().find(|name| name.eq_ignore_ascii_case(algorithm))?;
    let start = algorithm.len() + 1;
    let units = ("limit", start, rest.split_once('/')?.0);
    let options = ["burst", "capacity", "keep-max"].into_iter().filter_map(|name| {
        let at = limit.find(&format!(":{name}="))? + name.len() + 2;
        Some((name, at, limit[at..].split(':').next()?))
    });
    std::iter::once(units).chain(options).find_map(|(name, at, text)| {
        let number = whole(text)?;
        Some((at, format!("invalid {name} `{text}`: did you mean `{number}`?")))
    })
}

/// The number that `text` means, which is not written as digits alone.
fn whole(text: &str) -> Option<u32> {
    let plain: String = text.chars().filter(|it| !"_'".contains(*it)).collect();
    let plain = plain.to_ascii_lowercase();
    let digits = plain.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = plain.split_at(digits);
    let zeros: u32 = match rest {
        "" => 0,
        "k" => 3,
        "m" => 6,
        _ => rest.strip_prefix('e')?.parse().ok()?,
    };
    let number = number.parse::<u32>().ok()?.checked_mul(10_u32.checked_pow(zeros)?)?;
    let is_changed = !text.bytes().all(|it| it.is_ascii_digit());
    (is_changed && number > 0).then_some(number)
}

/// An offset from UTC in the place of a time zone: `tz=+02:00`, `tz=UTC+2`.
fn offset_of_zone(limit: &str) -> Option<(usize, String)> {
    let at = limit.find(":tz=")? + ":tz=".len();
    let rest = &limit[at..];
    let prefix = ["utc", "gmt"]
        .into_iter()
        .any(|it| rest.get(..it.len()).is_some_and(|start| start.eq_ignore_ascii_case(it)));
    let sign = if prefix { 3 } else { 0 };
    let digits = rest.get(sign..)?.strip_prefix(['+', '-'])?;
    let is_inside = |it: char| it.is_ascii_digit() || it == ':';
    let end = digits.find(|it| !is_inside(it)).unwrap_or(digits.len());
    let zone = rest[..sign + 1 + end].trim_end_matches(':');
    let expected = "expected an IANA name, such as `Asia/Shanghai`; offsets are not supported";
    Some((at, format!("invalid time zone `{zone}`: {expected}")))
}

/// Quotes of shells, documents and keyboards.
const QUOTES: &str = "\"'`“”„‘’‚«»";

/// Bytes of a limit in which wrong separators are searched for.
const MAX_LIMIT: usize = 256;

/// Names of options, which may follow a wrong separator.
const OPTIONS: [&str; 9] =
    ["burst", "capacity", "count", "align", "keep", "keep-max", "refill", "tz", "borrow"];

/// Full-width forms of the characters of a policy, as some keyboards write them.
const WIDE: [(char, char); 4] = [('：', ':'), ('／', '/'), ('，', ','), ('＝', '=')];

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
fn algorithm_hint(name: &str) -> String {
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
