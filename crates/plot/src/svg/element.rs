//! Elements of a drawing, and its horizontal layout.

use std::fmt::Write;

use crate::{
    figure::{Figure, Role},
    labels::Anchor,
    scale::place,
    text::escape,
};

/// Width of a drawing. All lengths are in tenths of a pixel.
pub(super) const WIDTH: u64 = 7200;
/// Space left of the plots.
pub(super) const LEFT: u64 = 800;
/// Space right of the plots.
pub(super) const RIGHT: u64 = 160;

/// Length of a dash; the gap after it is half as long.
const DASH: u64 = 40;

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

/// The path of a bar up from its lower left corner; delayed requests are dashed, as a difference without colours.
pub(super) fn bar(role: Role, [left, low]: [u64; 2], wide: u64, high: u64) -> String {
    let (dash, gap) = if role == Role::Delayed { (DASH, DASH / 2) } else { (high, 0) };
    let (left, wide) = (tenths(left), tenths(wide));
    let mut path = String::new();
    let mut drawn = 0;
    while drawn < high {
        let (low, high) = (tenths(low - drawn), tenths(dash.min(high - drawn)));
        let _ = write!(path, "M{left} {low}h{wide}v-{high}h-{wide}z");
        drawn += dash + gap;
    }
    path
}

/// Tenths as a decimal number.
pub(super) fn tenths(value: u64) -> String {
    match value % 10 {
        0 => (value / 10).to_string(),
        tenth => format!("{}.{tenth}", value / 10),
    }
}
