//! Tables of `simulate` and `recommend`.

use std::{io::Write, time::Duration};

use sluicegate_core::{as_micros, human::span};
use sluicegate_plot::Table;

use crate::percent::percent;

/// Maximum number of keys in a table.
pub(crate) const BUSIEST: usize = 10;
/// Maximum length of a key in characters.
const MAX_KEY_CHARS: usize = 40;

/// A duration, rounded up to a readable precision.
pub(crate) fn duration_text(duration: Duration) -> String {
    span(as_micros(duration))
}

/// `part` of `whole` in per cent.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    format!("{:>7}", percent(part, whole))
}

/// Bytes on one line, as text if they are. Characters that would change the line around them are escaped.
pub(crate) fn on_one_line(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|it| it.is_control() || is_format(it)) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// Whether a character ends a line, changes the direction of text, or is invisible.
const fn is_format(it: char) -> bool {
    matches!(it, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A key on a line, cut where it is long.
pub(crate) fn key_cell(key: &[u8]) -> String {
    let whole = on_one_line(key);
    match whole.char_indices().nth(MAX_KEY_CHARS) {
        Some(_) => whole.chars().take(MAX_KEY_CHARS - 1).chain(['…']).collect(),
        None => whole,
    }
}

/// Each column as wide as its widest cell: words to the left, figures to the right.
pub(crate) fn write_table(table: &Table, out: &mut impl Write) -> anyhow::Result<()> {
    let lines = || [&table.heading].into_iter().chain(&table.rows);
    let width = |column: usize| {
        let cells = lines().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.heading.len()).map(width).collect();
    for row in lines() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_key_stays_on_its_line() {
        assert_eq!(key_cell("Zoë".as_bytes()), "Zoë");
        assert_eq!(key_cell(b"a\nb\xff"), "a\\nb\\xff");
        for it in ["\u{85}", "\u{200f}", "\u{2028}", "\u{202e}", "\u{2066}", "\u{feff}"] {
            assert_eq!(key_cell(it.as_bytes()), it.as_bytes().escape_ascii().to_string());
        }
        assert_eq!(key_cell("é".repeat(41).as_bytes()), "é".repeat(39) + "…");
        assert_eq!(key_cell("é".repeat(40).as_bytes()), "é".repeat(40));
    }
}
