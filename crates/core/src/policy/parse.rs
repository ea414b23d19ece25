//! `ALGORITHM:N/PERIOD[:option[=value]]...`, joined by commas, from left to right.

use super::hint;
use crate::{
    algorithm::{ALGORITHMS, Limit},
    text::{LimitText, MAX_LIMITS, PartPosition, PolicyError, TextError, TextPart},
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
            match hint::joined(part, behind) {
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
        let (quoted, expected) = (whole.quoted(), hint::limit(text));
        return Err(whole.error(format!("invalid policy {quoted}: {expected}")));
    };
    let mut named = ALGORITHMS.iter().filter_map(|algorithm| {
        let mut names = algorithm.names.iter();
        let found = names.find(|(word, _)| word.eq_ignore_ascii_case(name.text));
        found.map(|&(word, options)| (word, options, algorithm.parse))
    });
    let Some((word, known, parse)) = named.next() else {
        let (quoted, expected) = (name.quoted(), hint::algorithm(name.text));
        return Err(name.error(format!("unknown algorithm {quoted}: {expected}")));
    };
    let (rate, options) = match rest.split(':') {
        Some((rate, options)) => (rate, Some(options)),
        None => (rest, None),
    };
    let Some((units, period)) = rate.split('/') else {
        let (quoted, expected) = (rate.quoted(), hint::rate_of(word));
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
