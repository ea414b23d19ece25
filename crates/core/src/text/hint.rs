//! Guesses at the meaning of an invalid option, and the wording of hints.

use crate::spelling::{closest, one_of};

/// The text after "expected" for `name`, which is not an option of an algorithm with the options `known`.
pub(super) fn option(name: &str, known: &[&'static str]) -> String {
    if known.is_empty() {
        return "expected none".to_owned();
    }
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

pub(crate) fn did_you_mean(words: &[&str]) -> String {
    format!("did you mean {}?", one_of(words))
}
