//! A figure as SVG: one file, no script, light or dark as its reader wishes.
//!
//! Lengths are whole tenths of a pixel, so that no two machines round them differently.

use std::fmt::Write;

use crate::{
    figure::{Figure, Plot, Row, Series, Shape},
    scale::{count_ticks, place, span, time_ticks},
    text::escape,
};

/// In tenths of a pixel, as all that follows.
const WIDTH: u64 = 8600;
const LEFT: u64 = 560;
const RIGHT: u64 = 160;
const HEAD: u64 = 620;
const FOOT: u64 = 480;
/// The height of a row's title, of the space below a plot, and of plots: the first one, others.
const TITLE: u64 = 240;
const GAP: u64 = 180;
const TALL: u64 = 960;
const SMALL: u64 = 460;
/// Half the width of a flag, and its height.
const FLAG: u64 = 35;

/// The colours: told apart by who sees no red or no green too, and by their lightness.
pub(crate) const STYLE: &str = "\
.sg{--paper:#ffffff;--ink:#1f2328;--quiet:#59636e;--grid:#d8dee4;--offered:#8c959f;\
--admitted:#2f7dd1;--delayed:#8250df;--denied:#e8a33d;--departed:#0a7f5f;--left:#57606a;--over:#cf222e}\
@media (prefers-color-scheme:dark){.sg{--paper:#0d1117;--ink:#e6edf3;--quiet:#9198a1;--grid:#30363d;\
--offered:#6e7681;--admitted:#4493f8;--delayed:#ab7df8;--denied:#d29922;--departed:#3fb98f;\
--left:#9198a1;--over:#f85149}}\
.sg text{font:11px system-ui,sans-serif;fill:var(--quiet)}\
.sg .title{font-size:15px;font-weight:600;fill:var(--ink)}\
.sg .rule{font:600 12px ui-monospace,monospace;fill:var(--ink)}\
.sg .paper{fill:var(--paper)}.sg .grid{stroke:var(--grid);stroke-width:1}\
.sg .offered{fill:var(--offered)}.sg .admitted{fill:var(--admitted)}.sg .delayed{fill:var(--delayed)}\
.sg .denied{fill:var(--denied)}.sg .departed{fill:var(--departed)}.sg .left{fill:var(--left)}\
.sg .step{fill:none;stroke-width:1.5;stroke-linejoin:round}\
.sg .step.offered{stroke:var(--offered)}.sg .step.departed{stroke:var(--departed)}\
.sg .step.left{stroke:var(--left)}.sg .area{opacity:.18}\
.sg .band{fill:var(--over);opacity:.12}.sg .flag{fill:var(--over)}.sg .over{fill:var(--over)}\
.sg text.over,.sg text.note{paint-order:stroke;stroke:var(--paper);stroke-width:3px;\
stroke-linejoin:round;font-weight:600}\
.sg .change{stroke:var(--ink);stroke-dasharray:4 3}";

/// Draws `figure`.
#[must_use]
pub fn svg(figure: &Figure) -> String {
    let mut out = String::new();
    let height = HEAD + figure.rows.iter().map(row_height).sum::<u64>() + FOOT;
    let (wide, high) = (tenths(WIDTH), tenths(height));
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"sg\" viewBox=\"0 0 {wide} {high}\" \
         width=\"{wide}\" height=\"{high}\" role=\"img\" aria-labelledby=\"sg-title sg-text\">\n\
         <title id=\"sg-title\">{}</title>\n<desc id=\"sg-text\">{}</desc>\n\
         <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{wide}\" height=\"{high}\"/>\n",
        escape(&figure.title),
        escape(&figure.description)
    );
    text(&mut out, "title", "start", 160, 240, &figure.title);
    legend(&mut out, figure);
    let mut y = HEAD;
    for row in &figure.rows {
        text(&mut out, "rule", "start", LEFT, y + 140, &row.title);
        text(&mut out, "note", "end", WIDTH - RIGHT, y + 140, &row.note);
        y += TITLE;
        for (index, plot) in row.plots.iter().enumerate() {
            let high = if index == 0 { TALL } else { SMALL };
            Area { figure, plot, y, height: high }.draw(&mut out);
            y += high + GAP;
        }
    }
    axis(&mut out, figure, y);
    out += "</svg>\n";
    out
}

fn row_height(row: &Row) -> u64 {
    let plots = row.plots.iter().enumerate();
    TITLE + plots.map(|(index, _)| GAP + if index == 0 { TALL } else { SMALL }).sum::<u64>()
}

fn legend(out: &mut String, figure: &Figure) {
    let mut x = 160;
    for (role, name, shape) in figure.legend() {
        let class = role.class();
        if shape == Shape::Stack {
            let (left, top) = (tenths(x), tenths(370));
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"11\" height=\"11\"/>"
            );
        } else {
            let (left, y) = (tenths(x), tenths(425));
            let _ = writeln!(out, "<path class=\"step {class}\" d=\"M{left} {y}h14\"/>");
        }
        text(out, "key", "start", x + 180, 465, name);
        x += 280 + 62 * u64::try_from(name.chars().count()).unwrap_or(0);
    }
    if figure.has_flags() {
        flag(out, x + 60, 390);
        text(out, "key", "start", x + 180, 465, "more than the limit in one period");
    }
}

/// A triangle with its point down, at `x` and below `y`.
fn flag(out: &mut String, x: u64, y: u64) {
    let (left, top, half, high) =
        (tenths(x.saturating_sub(FLAG)), tenths(y), tenths(FLAG), tenths(2 * FLAG));
    let _ = writeln!(
        out,
        "<path class=\"flag\" d=\"M{left} {top}h{}l-{half} {high}z\"/>",
        tenths(2 * FLAG)
    );
}

/// The time axis, below all rows.
fn axis(out: &mut String, figure: &Figure, y: u64) {
    let length = figure.length();
    let shown = length.saturating_sub(figure.origin);
    for value in time_ticks(shown, 10).values {
        let x = x(figure, figure.origin + value);
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{} {}v4\"/>",
            tenths(x),
            tenths(y.saturating_sub(GAP))
        );
        text(out, "tick", "middle", x, y, &span(value));
    }
    text(out, "axis", "middle", (LEFT + WIDTH - RIGHT) / 2, y + 220, &figure.axis);
}

/// Where a moment is, in microseconds from the beginning of the first span.
fn x(figure: &Figure, micros: u64) -> u64 {
    LEFT + place(micros, figure.length(), WIDTH - LEFT - RIGHT)
}

/// One plot and where it is.
struct Area<'a> {
    figure: &'a Figure,
    plot: &'a Plot,
    y: u64,
    height: u64,
}

impl Area<'_> {
    fn draw(&self, out: &mut String) {
        let top = self.plot.most().max(1);
        for mark in &self.plot.marks {
            let (from, to) = (self.x(mark.from), self.x(mark.to).max(self.x(mark.from) + 20));
            let (left, wide) = (tenths(from), tenths(to - from));
            let (y, high) = (tenths(self.y), tenths(self.height));
            let _ = writeln!(
                out,
                "<rect class=\"band\" x=\"{left}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\"/>"
            );
        }
        for value in count_ticks(top, if self.height == TALL { 4 } else { 2 }).values {
            let y = self.value_y(value, top);
            let (left, wide) = (tenths(LEFT), tenths(WIDTH - LEFT - RIGHT));
            let _ = writeln!(out, "<path class=\"grid\" d=\"M{left} {}h{wide}\"/>", tenths(y));
            text(out, "tick", "end", LEFT - 60, y + 40, &value.to_string());
        }
        let middle = self.y + self.height / 2;
        let (at, y) = (tenths(140), tenths(middle));
        let _ = writeln!(
            out,
            "<text text-anchor=\"middle\" transform=\"translate({at} {y}) rotate(-90)\">{}</text>",
            escape(&self.plot.label)
        );
        let mut stacked: Vec<u64> = Vec::new();
        for series in &self.plot.series {
            match series.shape {
                Shape::Stack => self.stack(out, series, &mut stacked, top),
                Shape::Step => self.step(out, series, top),
                Shape::Line => self.line(out, series, top),
            }
        }
        for index in &self.plot.flags {
            let index = u64::try_from(*index).unwrap_or(0);
            let at = index * self.figure.width + self.figure.width / 2;
            flag(out, self.x(at), self.y.saturating_sub(2 * FLAG + 20));
        }
        for mark in &self.plot.marks {
            self.label(out, "over", self.x(mark.from), &mark.label);
        }
        for change in &self.plot.changes {
            let x = self.x(change.at);
            let (at, y, high) = (tenths(x), tenths(self.y), tenths(self.height));
            let _ = writeln!(out, "<path class=\"change\" d=\"M{at} {y}v{high}\"/>");
            self.label(out, "note", x, &change.label);
        }
    }

    /// A word behind `x`, or before it where there is more room.
    fn label(&self, out: &mut String, class: &str, x: u64, label: &str) {
        let (anchor, at) = if x > WIDTH / 2 { ("end", x - 60) } else { ("start", x + 60) };
        text(out, class, anchor, at, self.y + 110, label);
    }

    /// Rectangles, on top of what is stacked.
    fn stack(&self, out: &mut String, series: &Series, stacked: &mut Vec<u64>, top: u64) {
        if stacked.len() < series.values.len() {
            stacked.resize(series.values.len(), 0);
        }
        let mut path = String::new();
        let mut index = 0;
        while index < series.values.len() {
            let (value, base) = (series.values[index], stacked[index]);
            let mut end = index + 1;
            // Equal neighbours are one rectangle.
            while series.values.get(end) == Some(&value) && stacked.get(end) == Some(&base) {
                end += 1;
            }
            if value > 0 {
                let (left, right) = (self.edge(index), self.edge(end));
                let (low, high) = (self.value_y(base, top), self.value_y(base + value, top));
                let _ = write!(
                    path,
                    "M{} {}H{}V{}H{}z",
                    tenths(left),
                    tenths(low),
                    tenths(right),
                    tenths(high),
                    tenths(left)
                );
            }
            stacked[index..end].iter_mut().for_each(|sum| *sum += value);
            index = end;
        }
        self.path(out, series.role.class(), &path);
    }

    fn step(&self, out: &mut String, series: &Series, top: u64) {
        let mut path = String::new();
        let mut last = None;
        for (index, value) in series.values.iter().enumerate() {
            if last == Some(*value) {
                continue;
            }
            let (x, y) = (tenths(self.edge(index)), tenths(self.value_y(*value, top)));
            let _ = match last {
                None => write!(path, "M{x} {y}"),
                Some(_) => write!(path, "H{x}V{y}"),
            };
            last = Some(*value);
        }
        if last.is_some() {
            let _ = write!(path, "H{}", tenths(self.edge(series.values.len())));
        }
        self.path(out, &format!("step {}", series.role.class()), &path);
    }

    fn line(&self, out: &mut String, series: &Series, top: u64) {
        let mut path = String::new();
        let half = self.figure.width / 2;
        for (index, (at, value)) in (0_u64..).zip(series.values.iter().enumerate()) {
            // A point between equal ones is on the line already.
            let same = |neighbour: Option<usize>| {
                neighbour.and_then(|at| series.values.get(at)) == Some(value)
            };
            if same(at.checked_sub(1)) && same(at.checked_add(1)) {
                continue;
            }
            let x = self.x(index / 2 * self.figure.width + half * (index % 2));
            let command = if index == 0 { "M" } else { "L" };
            let _ = write!(path, "{command}{} {}", tenths(x), tenths(self.value_y(*value, top)));
        }
        if let Some(last) = series.values.last() {
            let end = self.edge(series.values.len() / 2);
            let _ = write!(path, "L{} {}", tenths(end), tenths(self.value_y(*last, top)));
            let (bottom, left) = (tenths(self.y + self.height), tenths(LEFT));
            let closed = format!("{path}V{bottom}H{left}z");
            self.path(out, &format!("area {}", series.role.class()), &closed);
        }
        self.path(out, &format!("step {}", series.role.class()), &path);
    }

    fn path(&self, out: &mut String, class: &str, path: &str) {
        if !path.is_empty() {
            let _ = writeln!(out, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    fn x(&self, micros: u64) -> u64 {
        x(self.figure, micros)
    }

    /// Where the span of that index begins.
    fn edge(&self, index: usize) -> u64 {
        self.x(u64::try_from(index).unwrap_or(0) * self.figure.width)
    }

    fn value_y(&self, value: u64, top: u64) -> u64 {
        self.y + self.height - place(value, top, self.height)
    }
}

fn text(out: &mut String, class: &str, anchor: &str, x: u64, y: u64, text: &str) {
    if !text.is_empty() {
        let _ = writeln!(
            out,
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{}\" y=\"{}\">{}</text>",
            tenths(x),
            tenths(y),
            escape(text)
        );
    }
}

/// Tenths as a decimal number.
fn tenths(value: u64) -> String {
    match value % 10 {
        0 => (value / 10).to_string(),
        tenth => format!("{}.{tenth}", value / 10),
    }
}
