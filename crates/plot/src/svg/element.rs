//! Elements of a drawing, and its horizontal layout.

use std::fmt::Write;

use crate::{figure::Figure, labels::Anchor, scale::place, text::escape};

/// Width of a drawing. All lengths are in tenths of a pixel.
pub(super) const WIDTH: u64 = 7200;
/// Space left of the plots.
pub(super) const LEFT: u64 = 800;
/// Space right of the plots.
pub(super) const RIGHT: u64 = 160;

/// The horizontal position of a moment, in microseconds from the start of the first span.
pub(super) fn x(figure: &Figure, micros: u64) -> u64 {
    LEFT + place(micros.min(figure.length()), figure.length(), WIDTH - LEFT - RIGHT)
}

/// Writes a text, unless it is empty.
pub(super) fn text(out: &mut String, class: &str, anchor: Anchor, x: u64, y: u64, text: &str) {
    if !text.is_empty() {
        let _ = writeln!(
            out,
            "<text class=\"{class}\" text-anchor=\"{}\" x=\"{}\" y=\"{}\">{}</text>",
            anchor.word(),
            tenths(x),
            tenths(y),
            escape(text)
        );
    }
}

/// Tenths as a decimal number.
pub(super) fn tenths(value: u64) -> String {
    match value % 10 {
        0 => (value / 10).to_string(),
        tenth => format!("{}.{tenth}", value / 10),
    }
}
