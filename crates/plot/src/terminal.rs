//! A figure in characters: a canvas of braille, two dots wide and four high in each.
//!
//! Denied requests are dotted, delayed ones are dashed, and other bars are solid: a terminal without colours shows the difference.

use std::fmt::Write;

use crate::{
    figure::{Figure, Plot, Role, Series, Shape, Size},
    scale::{count, place},
};

/// Columns for the values of an axis, with the line beside them.
const MARGIN: usize = 11;
/// Fewest and most columns of a plot.
const NARROW: usize = 20;
const WIDE: usize = 160;

/// A terminal to draw on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Its width in characters.
    pub columns: usize,
    /// Whether it shows colours.
    pub colour: bool,
}

impl Terminal {
    /// Draws `figure`, each line with its line end.
    #[must_use]
    pub fn draw(&self, figure: &Figure) -> String {
        let width = self.columns.saturating_sub(MARGIN + 1).clamp(NARROW, WIDE);
        let mut out = String::new();
        self.legend(figure, &mut out);
        for row in &figure.rows {
            let _ = writeln!(out, "\n{}", row.title);
            for note in &row.notes {
                let _ = writeln!(out, "{note}");
            }
            for plot in &row.plots {
                self.plot(figure, plot, width, &mut out);
            }
        }
        axis(figure, width, &mut out);
        // No spaces at the end of a line.
        out.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn legend(&self, figure: &Figure, out: &mut String) {
        let mut used = 0;
        for (role, name, shape) in figure.legend() {
            let sample = match (shape, role) {
                (Shape::Bars, Role::Denied) => "⢕⢕",
                (Shape::Bars, Role::Delayed) => "⣤⣤",
                (Shape::Bars | Shape::Above, _) => "⣿⣿",
                (Shape::Line, Role::Bound) => "⠂⠂",
                (Shape::Step | Shape::Line, _) => "⠒⠒",
            };
            let length = 2 + 1 + name.chars().count();
            if used > 0 && used + length > self.columns.max(NARROW + MARGIN) {
                out.push('\n');
                used = 0;
            }
            let _ = write!(out, "{} {name}   ", self.paint(sample, Some(role)));
            used += length + 3;
        }
        out.push('\n');
    }

    fn plot(&self, figure: &Figure, plot: &Plot, width: usize, out: &mut String) {
        let rows = match plot.size {
            Size::Tall => 7,
            Size::Small => 3,
            Size::Strip => 2,
        };
        let mut canvas = Canvas::new(width, rows);
        edges(figure, plot, &mut canvas);
        bars(figure, plot, &mut canvas);
        for series in plot.series.iter().filter(|series| series.shape != Shape::Bars) {
            draw(figure, plot, series, &mut canvas);
        }
        let values = values(plot, &bounds(figure, plot, &mut canvas), rows);
        for (row, value) in values.iter().enumerate() {
            let _ = write!(out, "{value:>room$} ┤", room = MARGIN - 2);
            for (character, role) in canvas.row(row) {
                *out += &self.paint(character.encode_utf8(&mut [0; 4]), role);
            }
            out.push('\n');
        }
    }

    fn paint(&self, text: &str, role: Option<Role>) -> String {
        let code = match role {
            Some(Role::Bound | Role::Left) => "37",
            Some(Role::Level | Role::Admitted) => "34",
            Some(Role::Delayed) => "35",
            Some(Role::Denied) => "33",
            Some(Role::Sent) => "32",
            Some(Role::Excess) => "31",
            None => return text.to_owned(),
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Draws boundaries as dotted lines from top to bottom.
fn edges(figure: &Figure, plot: &Plot, canvas: &mut Canvas) {
    let width = u64::try_from(canvas.width()).unwrap_or(u64::MAX);
    for edge in &plot.edges {
        let x = usize::try_from(place(edge.at, figure.length(), width)).unwrap_or(0);
        for y in (0..canvas.height()).step_by(4) {
            canvas.set(x.min(canvas.width() - 1), y, Role::Bound);
        }
    }
}

/// Draws thin bars, the series on top of each other: every other column of dots at most.
fn bars(figure: &Figure, plot: &Plot, canvas: &mut Canvas) {
    let all = || plot.series.iter().filter(|series| series.shape == Shape::Bars);
    // Of several spans at one column the tallest is shown.
    let mut shown: Vec<Option<usize>> = vec![None; canvas.width()];
    for index in 0..figure.spans() {
        let column = &mut shown[scaled(index, figure.spans(), canvas.width()) & !1];
        if column.is_none_or(|other| plot.total(index) > plot.total(other)) {
            *column = Some(index);
        }
    }
    for (x, index) in shown.into_iter().enumerate() {
        let mut base = 0_u64;
        for series in all() {
            let value = index.and_then(|index| series.values.get(index)).copied().unwrap_or(0);
            let low = dot(base, plot.top(), canvas.height());
            base = base.saturating_add(value);
            let high = dot(base, plot.top(), canvas.height());
            let is_drawn = |y: &usize| match series.role {
                Role::Denied => y.is_multiple_of(2),
                Role::Delayed => (y - low) % 4 < 2,
                _ => true,
            };
            for y in (low..high).filter(is_drawn) {
                canvas.set(x, y, series.role);
            }
        }
    }
}

/// Draws a series that is not bars.
fn draw(figure: &Figure, plot: &Plot, series: &Series, canvas: &mut Canvas) {
    let top = plot.top();
    let per_span = if series.shape == Shape::Line { 2 } else { 1 };
    let values = figure.spans().max(1) * per_span;
    let mut last: Option<usize> = None;
    for x in 0..canvas.width() {
        let from = scaled(x, canvas.width(), values);
        let to = scaled(x + 1, canvas.width(), values).max(from + 1);
        let Some(found) = series.values.get(from..to.min(series.values.len())) else { continue };
        // Among many values the greatest is shown, except for remaining units, where it is the least.
        let value = match series.shape {
            Shape::Line => found.iter().min(),
            Shape::Bars | Shape::Step | Shape::Above => found.iter().max(),
        };
        let Some(&value) = value else { continue };
        let dots = |value: u64| dot(value, top, canvas.height());
        if series.shape == Shape::Above {
            let bound = plot.bound_at(micros(figure, x, canvas.width()));
            if value > bound {
                (dots(bound)..dots(value)).for_each(|y| canvas.set(x, y, series.role));
            }
        } else {
            let y = dots(value).min(canvas.height() - 1);
            let before = last.unwrap_or(y);
            (y.min(before)..=y.max(before)).for_each(|y| canvas.set(x, y, series.role));
            last = Some(y);
        }
    }
}

/// Draws the line that values are compared with, dotted; each value with the row that it is in.
fn bounds(figure: &Figure, plot: &Plot, canvas: &mut Canvas) -> Vec<(u64, usize)> {
    let mut found: Vec<(u64, usize)> = Vec::new();
    if plot.bounds.is_empty() {
        return found;
    }
    for x in 0..canvas.width() {
        let value = plot.bound_at(micros(figure, x, canvas.width()));
        let y = dot(value, plot.top(), canvas.height()).min(canvas.height() - 1);
        let row = (canvas.height() - 1 - y) / 4;
        if found.last().is_none_or(|(last, _)| *last != value) {
            found.push((value, row));
        }
        if x % 3 == 0 {
            canvas.set(x, y, Role::Bound);
        }
    }
    found
}

/// Text beside each row: its value, or the label of the plot.
fn values(plot: &Plot, bounds: &[(u64, usize)], rows: usize) -> Vec<String> {
    let mut values = vec![String::new(); rows];
    match plot.size {
        Size::Strip => values[0].clone_from(&plot.label),
        Size::Small => values[1].clone_from(&plot.label),
        Size::Tall => {}
    }
    if plot.size != Size::Strip {
        let height = 4 * rows;
        let most = dot(plot.max_value(), plot.top(), height).min(height - 1);
        values[(height - 1 - most) / 4] = count(plot.max_value());
        values[rows - 1] = "0".to_owned();
    }
    if let Some((value, row)) = bounds.last() {
        values[*row] = count(*value);
    }
    values
}

/// The moment at a column of dots, from the beginning of the first span.
fn micros(figure: &Figure, x: usize, width: usize) -> u64 {
    let of = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    place(of(x), of(width), figure.length())
}

/// Height of a value in dots, at least 1 unless it is 0.
fn dot(value: u64, top: u64, height: usize) -> usize {
    let height = u64::try_from(height).unwrap_or(u64::MAX);
    let place = place(value, top, height);
    usize::try_from(if value > 0 { place.max(1) } else { 0 }).unwrap_or(0)
}

fn scaled(index: usize, of: usize, onto: usize) -> usize {
    index * onto / of
}

fn axis(figure: &Figure, width: usize, out: &mut String) {
    let length = figure.length();
    let most = u64::try_from(width / 12).unwrap_or(2);
    let mut line: Vec<char> = vec!['─'; width];
    let mut words: Vec<char> = vec![' '; width + 8];
    for (at, span) in figure.axis_ticks(most) {
        let at = place(at, length, u64::try_from(width).unwrap_or(0));
        let at = usize::try_from(at).unwrap_or(0).min(width - 1);
        line[at] = '┴';
        for (to, from) in words[at..].iter_mut().zip(span.chars()) {
            *to = from;
        }
    }
    let room = MARGIN - 1;
    let _ = writeln!(out, "{:>room$}└{}", "", line.into_iter().collect::<String>());
    let _ = writeln!(out, "{:>MARGIN$}{}", "", words.into_iter().collect::<String>());
    for line in figure.axis.lines() {
        let _ = writeln!(out, "{:>MARGIN$}{line}", "");
    }
}

/// Dots of a character from the top left, column by column, as bits of its code point.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
const BLANK: u32 = 0x2800;

/// Dots, each with its role.
#[derive(Debug)]
pub(crate) struct Canvas {
    /// In characters.
    columns: usize,
    rows: usize,
    dots: Vec<Option<Role>>,
}

impl Canvas {
    pub(crate) fn new(columns: usize, rows: usize) -> Self {
        Self { columns, rows, dots: vec![None; columns * rows * 8] }
    }

    /// Width in dots.
    pub(crate) const fn width(&self) -> usize {
        2 * self.columns
    }

    /// Height in dots.
    pub(crate) const fn height(&self) -> usize {
        4 * self.rows
    }

    /// Sets a dot, counted from the bottom left; dots outside are ignored.
    pub(crate) fn set(&mut self, x: usize, y: usize, role: Role) {
        if x < self.width() && y < self.height() {
            let index = (self.height() - 1 - y) * self.width() + x;
            self.dots[index] = Some(role);
        }
    }

    /// The characters of a row, counted from the top, each with the role that has most of its dots.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = (char, Option<Role>)> {
        (0..self.columns).map(move |column| {
            let (mut bits, mut counts) = (0, [0_u8; Role::ALL.len()]);
            for (dx, side) in DOTS.iter().enumerate() {
                for (dy, bit) in side.iter().enumerate() {
                    let index = (4 * row + dy) * self.width() + 2 * column + dx;
                    if let Some(role) = self.dots[index] {
                        bits |= bit;
                        if let Some(at) = Role::ALL.iter().position(|it| *it == role) {
                            counts[at] += 1;
                        }
                    }
                }
            }
            let most = (0..counts.len()).rev().max_by_key(|at| counts[*at]);
            let role = most.filter(|at| counts[*at] > 0).map(|at| Role::ALL[at]);
            (if bits == 0 { ' ' } else { char::from_u32(BLANK + bits).unwrap_or(' ') }, role)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Bound, Row};

    fn figure() -> Figure {
        let series = |role, shape, values| Series { name: "some requests", role, shape, values };
        let plot = Plot {
            label: "requests".to_owned(),
            series: vec![
                series(Role::Admitted, Shape::Bars, vec![3, 1, 0, 2]),
                series(Role::Denied, Shape::Bars, vec![0, 5, 0, 0]),
                series(Role::Left, Shape::Line, vec![3, 2, 2, 1, 1, 1, 1, 0]),
            ],
            bounds: vec![Bound { at: 0, value: 4, label: "limit 4".to_owned() }],
            ..Plot::default()
        };
        let row =
            Row { title: "rule".to_owned(), notes: vec!["note".to_owned()], plots: vec![plot] };
        Figure { width: 1_000_000, rows: vec![row], ..Figure::default() }
    }

    #[test]
    fn draw_without_colours_has_the_same_characters() {
        let draw = |colour| Terminal { columns: 60, colour }.draw(&figure());
        let (plain, coloured) = (draw(false), draw(true));
        assert!(!plain.contains('\x1b') && coloured.contains("\x1b[33m"));
        let stripped: String = coloured
            .split('\x1b')
            .enumerate()
            .map(
                |(index, part)| {
                    if index == 0 { part } else { &part[part.find('m').unwrap() + 1..] }
                },
            )
            .collect();
        let trimmed: String =
            stripped.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        assert_eq!(trimmed, plain);
    }

    #[test]
    fn draw_bars_of_each_role_without_colours_are_different() {
        let bars = |role, at: usize| {
            let mut values = vec![0; 3];
            values[at] = 9;
            Series { name: "requests", role, shape: Shape::Bars, values }
        };
        let roles = [Role::Admitted, Role::Delayed, Role::Denied];
        let series = roles.into_iter().enumerate().map(|(at, role)| bars(role, at)).collect();
        let row = Row { plots: vec![Plot { series, ..Plot::default() }], ..Row::default() };
        let figure = Figure { width: 1, rows: vec![row], ..Figure::default() };
        let drawn = Terminal { columns: 40, colour: false }.draw(&figure);
        assert!(drawn.starts_with("⣿⣿ requests   ⣤⣤ requests   ⢕⢕ requests\n"), "{drawn}");
        let bottom = drawn.lines().rfind(|line| line.contains('┤')).unwrap();
        let bars: Vec<char> = bottom.chars().filter(|it| ('⠁'..='⣿').contains(it)).collect();
        assert_eq!(bars, ['⡇', '⡄', '⡂'], "{drawn}");
    }

    #[test]
    fn draw_any_width_is_possible() {
        for columns in [0, 1, 20, 79, 80, 1000] {
            let drawn = Terminal { columns, colour: false }.draw(&figure());
            let widest = drawn.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns.max(NARROW + MARGIN + 8), "{columns}: {widest}");
            assert!(drawn.contains("\nnote\n") && drawn.contains("      4 ┤"), "{drawn}");
        }
        assert!(Terminal { columns: 80, colour: false }.draw(&Figure::default()).contains('└'));
    }
}

#[cfg(test)]
mod canvas_tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn set_dot_is_in_its_character() {
        let mut canvas = Canvas::new(2, 1);
        canvas.set(0, 0, Role::Denied);
        canvas.set(3, 3, Role::Left);
        canvas.set(4, 0, Role::Left);
        canvas.set(0, 4, Role::Left);
        let row: Vec<_> = canvas.row(0).collect();
        assert_eq!(row, [('⡀', Some(Role::Denied)), ('⠈', Some(Role::Left))]);
    }

    proptest! {
        #[test]
        fn row_each_dot_is_one_bit(
            dots in proptest::collection::btree_set((0..20_usize, 0..12_usize), 0..100),
        ) {
            let mut canvas = Canvas::new(10, 3);
            dots.iter().for_each(|(x, y)| canvas.set(*x, *y, Role::Admitted));
            let characters = (0..3).flat_map(|row| canvas.row(row).collect::<Vec<_>>());
            let bits = characters.map(|(character, _)| match character {
                ' ' => 0,
                _ => (u32::from(character) - BLANK).count_ones(),
            });
            prop_assert_eq!(usize::try_from(bits.sum::<u32>()).unwrap(), dots.len());
        }
    }
}
