//! Texts of foreign errors, for use in errors of Sluicegate.

use std::fmt;

/// The text of a foreign error without its OS error number, on one line, and in lower case.
///
/// ```
/// use sluicegate_commands::plain_error;
///
/// let error = "No such file or directory (os error 2)";
/// assert_eq!(plain_error(&error), "no such file or directory");
/// ```
#[must_use]
pub fn plain_error(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once(" (os error ") {
        plain.push_str(before);
        rest = behind.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let plain = plain.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let mut chars = plain.chars();
    match (chars.next(), chars.as_str()) {
        // Acronyms stay: `TLS`, `I/O`.
        (Some(first), rest)
            if rest.starts_with(|next: char| next.is_lowercase() || next == ' ') =>
        {
            first.to_lowercase().chain(rest.chars()).collect()
        }
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_error_foreign_texts_are_normalised() {
        for (text, expected) in [
            ("Connection refused (os error 111)", "connection refused"),
            ("x: Permission denied (os error 13); y", "x: Permission denied; y"),
            ("I/O error", "I/O error"),
            ("two\n  lines", "two lines"),
            ("", ""),
        ] {
            assert_eq!(plain_error(&text), expected);
        }
    }
}
