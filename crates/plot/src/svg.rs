//! A figure as SVG: one file without scripts, in light or dark colours by the reader's system.
//!
//! Lengths are whole tenths of a pixel, so that every machine rounds them equally. Texts have two
//! sizes, because the drawing shrinks on a narrow screen and its texts do not. Space is reserved for the larger size.

mod area;
mod element;

use std::fmt::Write;

use self::{
    area::Area,
    element::{RIGHT, WIDTH, bar, tenths, text, x},
};
use crate::{
    figure::{Figure, Plot, Role, Row, Shape, Size},
    labels::{Anchor, width},
    text::escape,
};

/// The left edge of texts that belong to no axis. Lengths are in tenths of a pixel.
const EDGE: u64 = 160;
/// Heights: a line of text, the space around plots, and below a row.
const LINE: u64 = 230;
const GAP: u64 = 90;
const BELOW: u64 = 260;
/// Characters of a title on one line.
const TITLE: usize = 54;

/// The colours: they differ in lightness, and do not rely on red and green.
pub(crate) const STYLE: &str = "\
.sg{--paper:#ffffff;--ink:#1f2328;--quiet:#59636e;--grid:#d8dee4;\
--allowed:#2f7dd1;--delayed:#8250df;--denied:#e8a33d;--sent:#0a7f5f;--remaining:#57606a;--over:#cf222e}\
@media (prefers-color-scheme:dark){.sg{--paper:#0d1117;--ink:#e6edf3;--quiet:#9198a1;--grid:#30363d;\
--allowed:#4493f8;--delayed:#ab7df8;--denied:#d29922;--sent:#3fb98f;\
--remaining:#9198a1;--over:#f85149}}\
.sg text{font:13px system-ui,sans-serif;fill:var(--quiet)}\
.sg .title{font-size:17px;font-weight:600;fill:var(--ink)}\
.sg .rule{font:600 14px ui-monospace,monospace;fill:var(--ink)}\
.sg .paper{fill:var(--paper)}.sg .grid{stroke:var(--grid);stroke-width:1}\
.sg .allowed{fill:var(--allowed)}.sg .delayed{fill:var(--delayed)}.sg .denied{fill:var(--denied)}\
.sg .sent{fill:var(--sent)}.sg .step{fill:none;stroke-width:2;stroke-linejoin:round}\
.sg .step.level{stroke:var(--allowed)}.sg .step.remaining{stroke:var(--remaining)}\
.sg .area{opacity:.14}.sg .area.level{fill:var(--allowed)}.sg .area.remaining{fill:var(--remaining)}\
.sg .excess{fill:var(--over);opacity:.45}\
.sg .step.bound{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:7 4}\
.sg .edge{stroke:var(--ink);stroke-width:1;stroke-dasharray:2 3}\
.sg .plot{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round;\
fill:var(--ink)}.sg .peak{fill:var(--over);font-weight:700}\
@media (max-width:560px){.sg text{font-size:19px}.sg .title{font-size:21px}\
.sg .rule{font-size:19px}.sg .odd{display:none}}";

/// Draws `figure`.
#[must_use]
pub fn svg(figure: &Figure) -> String {
    let mut body = String::new();
    text(&mut body, "title", Anchor::Start, EDGE, 290, &figure.title);
    let mut y = legend(&mut body, figure, 560) + 170;
    for row in &figure.rows {
        y = self::row(&mut body, figure, row, y);
    }
    let height = axis(&mut body, figure, y) + 160;
    let (wide, high) = (tenths(WIDTH), tenths(height));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"sg\" viewBox=\"0 0 {wide} {high}\" \
         width=\"{wide}\" height=\"{high}\" role=\"img\" aria-labelledby=\"sg-title sg-text\">\n\
         <title id=\"sg-title\">{}</title>\n<desc id=\"sg-text\">{}</desc>\n\
         <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{wide}\" height=\"{high}\"/>\n\
         {body}</svg>\n",
        escape(&figure.title),
        escape(&figure.description)
    )
}

/// Draws the legend from the baseline `y` on; the baseline of its last line.
fn legend(out: &mut String, figure: &Figure, mut y: u64) -> u64 {
    let mut x = EDGE;
    for (role, name, shape) in figure.legend() {
        let class = role.class();
        let wide = 300 + width(name);
        if x > EDGE && x + wide > WIDTH - RIGHT {
            (x, y) = (EDGE, y + LINE);
        }
        let (left, top) = (tenths(x), tenths(y - 110));
        let _ = match shape {
            Shape::Bars if role == Role::Delayed => {
                let bars = [0, 60, 120].map(|at| bar(role, [x + at, y + 10], 30, 120)).concat();
                writeln!(out, "<path class=\"{class}\" d=\"{bars}\"/>")
            }
            Shape::Bars => {
                let bar =
                    format!("<path class=\"{class}\" d=\"M{left} {top}v12h3v-12zm6 0v12h3v-12z");
                writeln!(out, "{bar}m6 0v12h3v-12z\"/>")
            }
            Shape::Above => writeln!(
                out,
                "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"16\" height=\"12\"/>"
            ),
            Shape::Step | Shape::Line => {
                let middle = tenths(y - 50);
                writeln!(out, "<path class=\"step {class}\" d=\"M{left} {middle}h18\"/>")
            }
        };
        text(out, "key", Anchor::Start, x + 240, y, name);
        x += wide + 80;
    }
    y
}

/// Draws a policy below `y`; where it ends.
fn row(out: &mut String, figure: &Figure, row: &Row, mut y: u64) -> u64 {
    for line in title_lines(&row.title) {
        y += LINE;
        text(out, "rule", Anchor::Start, EDGE, y, &line);
    }
    for note in &row.notes {
        y += LINE;
        text(out, "note", Anchor::Start, EDGE, y, note);
    }
    y += GAP + 110;
    let areas = row.plots.iter().map(|plot| {
        let area = Area { figure, plot, y, height: height(plot) };
        y += area.height + GAP;
        area
    });
    let areas: Vec<Area<'_>> = areas.collect();
    let bottom = areas.last().map_or(y, |area| area.y + area.height);
    // Boundaries are drawn below the series, through all plots.
    for (area, edge) in
        areas.iter().flat_map(|area| area.plot.edges.iter().map(move |it| (area, it)))
    {
        let x = tenths(x(figure, edge.at));
        let (from, high) = (tenths(area.y), tenths(bottom - area.y));
        let _ = writeln!(out, "<path class=\"edge\" d=\"M{x} {from}v{high}\"/>");
    }
    areas.iter().for_each(|area| area.draw(out));
    bottom + BELOW
}

fn height(plot: &Plot) -> u64 {
    match plot.size {
        Size::Tall => 1400,
        Size::Strip => 300,
        Size::Small => 500,
    }
}

/// A title of several limits, a line for as many as fit.
fn title_lines(title: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in title.split_inclusive(',') {
        match lines.last_mut() {
            Some(last) if last.chars().count() + part.chars().count() <= TITLE => *last += part,
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// Draws the time axis at `y`; the baseline of its last line.
fn axis(out: &mut String, figure: &Figure, y: u64) -> u64 {
    let y = y - BELOW;
    for (index, (at, span)) in figure.axis_ticks(8).into_iter().enumerate() {
        let x = x(figure, at);
        let _ = writeln!(out, "<path class=\"grid\" d=\"M{} {}v5\"/>", tenths(x), tenths(y));
        let class = if index % 2 == 0 { "tick" } else { "tick odd" };
        let is_cut = Anchor::Middle.extent(&span, x).is_none_or(|(_, right)| right > WIDTH);
        let (anchor, x) = if is_cut { (Anchor::End, WIDTH) } else { (Anchor::Middle, x) };
        text(out, class, anchor, x, y + LINE, &span);
    }
    let mut y = y + LINE + 40;
    for line in figure.axis.lines() {
        y += LINE;
        text(out, "axis", Anchor::Start, EDGE, y, line);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_of_many_limits_is_split_between_them() {
        assert_eq!(title_lines("gcra:10/1s,gcra:5/1m"), ["gcra:10/1s,gcra:5/1m"]);
        let long =
            "token-bucket:10/1s:burst=20:refill=interval,fixed-window:10000/day:tz=Asia/Tokyo";
        let lines = title_lines(long);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines.concat(), long);
    }
}
