//! Errors of rules files, with their positions.

use std::fmt;

use sluicegate_core::human::{is_shown, printable};

/// An invalid rules file: the position, the invalid value, and what is expected.
///
/// [`Display`](fmt::Display) is one line, `line 3, column 13: ...`; [`excerpt`](Self::excerpt) shows the position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct RulesError {
    /// Position of the invalid value.
    pub at: Position,
    /// The invalid value, and what is expected.
    pub message: String,
    /// The line, and below it a mark at the position, each followed by a line feed; empty if there is no such line.
    pub excerpt: String,
}

/// Position in a text: line and column, both from 1, the column in characters. Zero if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
}

impl Position {
    /// The position `characters` further in the line.
    pub(crate) const fn skip(self, characters: usize) -> Self {
        Self { line: self.line, column: self.column + characters }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}, column {}", self.line, self.column)
    }
}

/// Where a name is defined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Definition {
    /// Index of the source.
    pub(crate) source: usize,
    pub(crate) line: usize,
}

/// An error whose text is not yet known.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    at: Position,
    message: String,
}

impl Fault {
    pub(crate) fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }

    pub(crate) fn in_text(self, text: &str) -> RulesError {
        let excerpt = excerpt(text, self.at);
        RulesError { at: self.at, message: self.message, excerpt }
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.line > 0 {
            write!(formatter, "{}: ", self.at)?;
        }
        formatter.write_str(&self.message)
    }
}

/// Maximum number of characters before and after the position in an excerpt.
const AROUND: usize = 60;

fn excerpt(text: &str, at: Position) -> String {
    let Some(line) = at.line.checked_sub(1).and_then(|index| text.lines().nth(index)) else {
        return String::new();
    };
    let column = at.column.saturating_sub(1);
    let from = column.saturating_sub(AROUND);
    let shown = line.chars().skip(from).take(2 * AROUND).map(one_column);
    let shown: String = shown.collect();
    let number = at.line.to_string();
    let margin = " ".repeat(number.len());
    let mark = " ".repeat(column - from);
    format!("{number} | {shown}\n{margin} | {mark}^\n")
}

/// Replaces characters that a terminal does not show as one character.
fn one_column(character: char) -> char {
    match character {
        '\t' => ' ',
        it if is_shown(it) => it,
        _ => '\u{fffd}',
    }
}

/// A string in backquotes for an error text, truncated if it is long.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("`{}…`", printable(&text[..end])),
        None => format!("`{}`", printable(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_marks_the_position() {
        let error = Fault::new(Position { line: 2, column: 5 }, "wrong").in_text("a\nbö: c\n");
        assert_eq!(error.to_string(), "line 2, column 5: wrong");
        assert_eq!(error.excerpt, "2 | bö: c\n  |     ^\n");
        assert_eq!(Fault::new(Position { line: 9, column: 1 }, "x").in_text("a").excerpt, "");
    }
}
