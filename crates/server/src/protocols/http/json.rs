//! Errors of JSON bodies: which member is invalid, and what is expected there.
//!
//! serde says "invalid type: integer `1`, expected `key`, a string at line 1 column 8" where a visitor expects
//! "`key`, a string"; here that becomes "invalid `key` `1`: expected a string".

use sluicegate_core::human::printable;

use super::problem::Problem;

/// Characters of a value that are shown.
const SHOWN: usize = 60;

/// The problem of a `body` that cannot be read.
#[cold]
pub(super) fn problem(error: &serde_json::Error, body: &[u8]) -> Problem {
    let text = error.to_string();
    let (line, column) = (error.line(), error.column());
    let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    if error.is_data() {
        return Problem::unprocessable(explain(text, number_before(body, line, column)));
    }
    if error.is_eof() && (line, column) == (1, 0) {
        return Problem::malformed("the body is empty: expected a JSON object");
    }
    if text == "number out of range" {
        let shown = number_before(body, line, column).map(cut).unwrap_or_default();
        return Problem::unprocessable(format!("invalid number `{shown}`: expected a smaller one"));
    }
    let reason = match text {
        _ if error.is_eof() => "it ends early",
        "expected value" | "expected ident" => "unexpected character",
        text => text,
    };
    Problem::malformed(format!(
        "the body is not valid JSON: {reason} (line {line}, column {column})"
    ))
}

/// The number in `body` that ends at this place, as it is written.
fn number_before(body: &[u8], line: usize, column: usize) -> Option<&str> {
    let line = body.split(|byte| *byte == b'\n').nth(line.checked_sub(1)?)?.get(..column)?;
    let is_other = |byte: &u8| !(byte.is_ascii_digit() || b"+-.eE".contains(byte));
    let start = line.iter().rposition(is_other).map_or(0, |index| index + 1);
    str::from_utf8(&line[start..]).ok().filter(|number| !number.is_empty())
}

/// The text of an error about a value, in the form of our errors. `number` is the last number before it: serde writes
/// 1e3 as 1000.0.
fn explain(text: &str, number: Option<&str>) -> String {
    // The deserialization of an array adds `requests[3]: `.
    if let Some((index, inner)) = text.split_once("]: ")
        && let Some((list, place)) = index.split_once('[')
        && ["requests", "takes", "settles"].contains(&list)
        && place.parse::<usize>().is_ok()
    {
        return format!("{index}]: {}", explain(inner, number));
    }
    if let Some((name, known)) = unknown(text) {
        return format!("unknown member `{}`: expected {known}", cut(name));
    }
    let member = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix('`');
    if let Some(name) = member("duplicate field `") {
        return format!("duplicate member `{name}`: expected it once");
    }
    if let Some(name) = member("missing field `") {
        return format!("missing member `{name}`: expected it once");
    }
    let invalid = ["invalid type: ", "invalid value: ", "invalid length "];
    let found = invalid.iter().find_map(|it| text.strip_prefix(it)?.rsplit_once(", expected "));
    let Some((found, expected)) = found else { return text.to_owned() };
    let (name, expected) = match expected.strip_prefix('`').and_then(|it| it.split_once("`, ")) {
        Some((name, expected)) => (format!("`{name}`"), expected),
        None => ("body".to_owned(), expected),
    };
    // It could look like what is expected.
    if text.starts_with("invalid type: ")
        && let Some(text) = string(found)
    {
        return format!("invalid {name}: expected {expected}, not the string `{}`", cut(text));
    }
    let (value, kind) = described(found, number);
    match value {
        Some(value) => format!("invalid {name} `{value}`: expected {expected}"),
        None => format!("invalid {name}: expected {expected}, not {kind}"),
    }
}

/// The name that is unknown, and those that are known.
fn unknown(text: &str) -> Option<(&str, &str)> {
    let (name, known) = text.strip_prefix("unknown field `")?.rsplit_once("`, expected ")?;
    Some((name, known.trim_start_matches("one of ")))
}

/// The string that serde found.
fn string(found: &str) -> Option<&str> {
    found.strip_prefix("string \"")?.strip_suffix('"')
}

/// What serde found: a value to show, or a kind of value. `number` is the last number of the body before it.
fn described<'a>(found: &'a str, number: Option<&str>) -> (Option<String>, &'a str) {
    if let Some(text) = string(found) {
        return (Some(cut(text)), "");
    }
    let (kind, value) = found.split_once(' ').unwrap_or((found, ""));
    let value = value.trim_matches('`').trim_start_matches("point `");
    match kind {
        "sequence" => (None, "an array"),
        "map" => (None, "an object"),
        "null" => (Some("null".to_owned()), ""),
        "floating" => {
            let parsed = value.parse::<f64>();
            (Some(cut(number.filter(|it| it.parse() == parsed).unwrap_or(value))), "")
        }
        "integer" | "boolean" => (Some(cut(value)), ""),
        _ => (None, found),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", printable(&text[..end])),
        None => printable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explain_serde_errors_name_the_member() {
        for (text, expected) in [
            (
                "invalid type: integer `1`, expected `key`, a string",
                "invalid `key` `1`: expected a string",
            ),
            (
                "invalid type: floating point `1.5`, expected `cost`, a whole number",
                "invalid `cost` `1.5`: expected a whole number",
            ),
            (
                "invalid type: string \"5\", expected `cost`, a whole number",
                "invalid `cost`: expected a whole number, not the string `5`",
            ),
            (
                "invalid value: string \"x, expected `y`\", expected `headers`, ietf",
                "invalid `headers` `x, expected `y``: expected ietf",
            ),
            (
                "invalid type: null, expected `key`, a string",
                "invalid `key` `null`: expected a string",
            ),
            (
                "invalid type: sequence, expected a JSON object",
                "invalid body: expected a JSON object, not an array",
            ),
            (
                "requests[3]: invalid type: boolean `true`, expected `key`, a string",
                "requests[3]: invalid `key` `true`: expected a string",
            ),
            (
                "unknown field `kye`, expected one of `key`, `cost`",
                "unknown member `kye`: expected `key`, `cost`",
            ),
            (
                "unknown field `\u{1b}[31m`, expected `key`",
                "unknown member `\\u{1b}[31m`: expected `key`",
            ),
            ("duplicate field `key`", "duplicate member `key`: expected it once"),
            ("missing field `key`", "missing member `key`: expected it once"),
            (
                "invalid length 0, expected `requests`, 1 to 256 takes",
                "invalid `requests`: expected 1 to 256 takes, not 0",
            ),
        ] {
            assert_eq!(explain(text, None), expected);
        }
        assert!(
            explain(&format!("unknown field `{}`, expected `a`", "x".repeat(9999)), None).len()
                < 200
        );
    }
}
