//! Errors of the syntax of YAML, in words that name the correction. The parser's own words name its rules.

use crate::error::{Position, quoted};

/// Where and why `text` is not YAML, given the position and the description of the parser.
pub(super) fn explain(text: &str, at: Position, info: &str) -> (Position, String) {
    let line = |number: usize| number.checked_sub(1).and_then(|index| text.lines().nth(index));
    let this = line(at.line).unwrap_or_default();
    // The parser may stop at the line before.
    for number in [at.line, at.line + 1] {
        let indent = line(number).map(|line| line.len() - line.trim_start().len());
        let tab = line(number).zip(indent).and_then(|(line, indent)| line[..indent].find('\t'));
        if let Some(tab) = tab {
            let at = Position { line: number, column: tab + 1 };
            return (at, "invalid indentation: expected spaces, found a tab".to_owned());
        }
    }
    let start = this.char_indices().nth(at.column.saturating_sub(1)).map_or(this.len(), |it| it.0);
    let (before, rest) = this.split_at(start);
    let is_start_of_value = ["unexpected character", "anchor"].iter().any(|it| info.contains(it));
    let message = if is_start_of_value {
        let value = rest.split(" #").next().unwrap_or_default();
        let value = value.trim_end().trim_end_matches([',', ']', '}']);
        let first: String = value.chars().take(1).collect();
        match first.as_str() {
            "" => format!("invalid YAML: {info}"),
            _ if rest.starts_with(char::is_control) => {
                format!(
                    "invalid character {}: expected its escape in double quotes",
                    quoted(&first)
                )
            }
            _ => format!(
                "invalid value {}: expected it in quotes, because YAML gives `{first}` at its beginning a meaning",
                quoted(value)
            ),
        }
    } else if info.starts_with("mapping values are not allowed") {
        return colon(text, at, before, rest);
    } else if info.starts_with("simple key expected") {
        format!("missing `:` after the name of a field in {}", quoted(this.trim()))
    } else if ["'-' indicator", "key"]
        .iter()
        .any(|it| info.ends_with(&format!("did not find expected {it}")))
    {
        "invalid indentation: expected that of a line above".to_owned()
    } else if info.contains("expected ',' or '}'") {
        "missing `}` of a map: expected it, or a comma, before this".to_owned()
    } else if info.contains("expected ',' or ']'") {
        "missing `]` of a list: expected it, or a comma, before this".to_owned()
    } else if info.contains("trailing content after") {
        "invalid text after a closing quote: expected the end of the value".to_owned()
    } else if info.contains("multiline quoted scalar") {
        "missing closing quote: expected it before this line".to_owned()
    } else {
        format!("invalid YAML: {info}")
    };
    (at, message)
}

/// The error at a colon that begins no value: the one before it did not end.
fn colon(text: &str, at: Position, before: &str, rest: &str) -> (Position, String) {
    if let Some((name, value)) = before.split_once(": ") {
        let value = format!("{}{}", value.trim_start(), rest.trim_end());
        let shift = name.chars().count() + 2;
        let at = Position { line: at.line, column: shift + 1 };
        let message = format!(
            "invalid value {}: expected no space after `:`, or quotes around the value",
            quoted(&value)
        );
        return (at, message);
    }
    let above = text.lines().enumerate().take(at.line.saturating_sub(1));
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
    let above = above.filter(|(_, line)| is_content(line)).last();
    let Some((index, above)) = above else {
        return (at, "invalid YAML: expected a name before `:`".to_owned());
    };
    let content = above.trim().trim_start_matches("- ");
    if content.ends_with(':') || content.contains(": ") {
        return (at, "invalid indentation: expected that of a line above".to_owned());
    }
    let column = 1 + above.chars().count();
    let message = format!("missing `:` after {}", quoted(content));
    (Position { line: index + 1, column }, message)
}
