//! One plot of a figure.

use std::{fmt::Write, ops::RangeInclusive};

use super::element::{LEFT, RIGHT, WIDTH, bar, tenths, text, x};
use crate::{
    figure::{Figure, Plot, Series, Shape, Size},
    labels::{Anchor, Labels},
    scale::{count, count_ticks, place},
};

/// The least height of a bar.
const MIN_BAR: u64 = 70;
/// The greatest widths of a bar, about a time and about another quantity.
const THIN_BAR: u64 = 20;
const WIDE_BAR: u64 = 200;

/// A plot and its position.
pub(super) struct Area<'a> {
    pub(super) figure: &'a Figure,
    pub(super) plot: &'a Plot,
    pub(super) y: u64,
    pub(super) height: u64,
}

impl Area<'_> {
    pub(super) fn draw(&self, out: &mut String) {
        let top = self.plot.top();
        self.values(out, top);
        let mut stacked: Vec<u64> = Vec::new();
        for series in &self.plot.series {
            match series.shape {
                Shape::Bars => self.bars(out, series, &mut stacked, top),
                Shape::Step => self.step(out, series, top),
                Shape::Above => self.above(out, series, top),
                Shape::Line => self.line(out, series, top),
            }
        }
        self.bounds(out, top);
        self.labels(out, top);
    }

    /// The axis of values.
    fn values(&self, out: &mut String, top: u64) {
        let most = match self.plot.size {
            Size::Tall => 4,
            Size::Small => 2,
            Size::Strip => {
                let middle = self.y + self.height / 2 + 50;
                text(out, "tick", Anchor::End, LEFT - 80, middle, &self.plot.label);
                return self.grid(out, 0, top);
            }
        };
        for value in count_ticks(top, most) {
            self.grid(out, value, top);
            let y = self.value_y(value, top) + 50;
            text(out, "tick", Anchor::End, LEFT - 80, y, &count(value));
        }
    }

    fn grid(&self, out: &mut String, value: u64, top: u64) {
        let (left, wide) = (tenths(LEFT), tenths(WIDTH - LEFT - RIGHT));
        let y = tenths(self.value_y(value, top));
        let _ = writeln!(out, "<path class=\"grid\" d=\"M{left} {y}h{wide}\"/>");
    }

    /// A thin bar in the middle of each span, above the `stacked` ones.
    fn bars(&self, out: &mut String, series: &Series, stacked: &mut Vec<u64>, top: u64) {
        if stacked.len() < series.values.len() {
            stacked.resize(series.values.len(), 0);
        }
        let widest = if self.figure.ticks.is_empty() { THIN_BAR } else { WIDE_BAR };
        let wide = ((self.edge(1) - self.edge(0)) / 2).clamp(8, widest);
        let bottom = self.y + self.height;
        let mut path = String::new();
        for (index, (value, base)) in series.values.iter().zip(stacked).enumerate() {
            if *value == 0 {
                continue;
            }
            // A single request among thousands is still visible.
            let total = self.plot.total(index);
            let high = place(total, top, self.height).max(MIN_BAR);
            let low = bottom - place(*base, total, high);
            *base = base.saturating_add(*value);
            let high = low - (bottom - place(*base, total, high));
            let middle = u64::midpoint(self.edge(index), self.edge(index + 1));
            path += &bar(series.role, [middle - wide / 2, low], wide, high);
        }
        self.path(out, series.role.class(), &path);
    }

    /// From the bound to the value.
    fn above(&self, out: &mut String, series: &Series, top: u64) {
        let mut path = String::new();
        let mut index = 0;
        while index < series.values.len() {
            let bound = |index: usize| self.plot.bound_at(self.micros(index));
            let (value, low) = (series.values[index], bound(index));
            let mut end = index + 1;
            // Equal neighbours are one rectangle.
            while series.values.get(end) == Some(&value) && bound(end) == low {
                end += 1;
            }
            if value > low {
                let (left, right) = (tenths(self.edge(index)), tenths(self.edge(end)));
                let (low, high) = (self.value_y(low, top), self.value_y(value, top));
                let _ = write!(path, "M{left} {}H{right}V{}H{left}z", tenths(low), tenths(high));
            }
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
        self.with_area(out, series, &path);
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
        }
        self.with_area(out, series, &path);
    }

    /// A line from end to end, and the area below it.
    fn with_area(&self, out: &mut String, series: &Series, path: &str) {
        if path.is_empty() {
            return;
        }
        let class = series.role.class();
        let (bottom, left) = (tenths(self.y + self.height), tenths(LEFT));
        self.path(out, &format!("area {class}"), &format!("{path}V{bottom}H{left}z"));
        self.path(out, &format!("step {class}"), path);
    }

    /// The line that values are compared with.
    fn bounds(&self, out: &mut String, top: u64) {
        let mut path = String::new();
        for (index, bound) in self.plot.bounds.iter().enumerate() {
            let left = if index == 0 { LEFT } else { self.x(bound.at) };
            let y = tenths(self.value_y(bound.value, top));
            let command = if index == 0 { "M" } else { "L" };
            let _ = write!(path, "{command}{} {y}H{}", tenths(left), tenths(self.bound_end(index)));
        }
        self.path(out, "step bound", &path);
    }

    /// Where the bound of that index ends.
    fn bound_end(&self, index: usize) -> u64 {
        self.plot.bounds.get(index + 1).map_or(WIDTH - RIGHT, |next| self.x(next.at))
    }

    /// The texts inside the plot, the most important first.
    fn labels(&self, out: &mut String, top: u64) {
        let plot = self.plot;
        let whole = LEFT..=WIDTH - RIGHT;
        let walls = plot.edges.iter().map(|edge| self.x(edge.at)).collect();
        let mut labels = Labels::between(walls);
        let mut place = |class: &str,
                         label: &str,
                         places: &[(Anchor, u64, u64)],
                         within: RangeInclusive<u64>| {
            // Bold text is wider.
            let wide =
                if class.ends_with("peak") { format!("{label}  ") } else { label.to_owned() };
            let mut is_free = |(anchor, x, y): &&(Anchor, u64, u64)| {
                labels.place(&wide, *anchor, *x, *y, &within)
            };
            let free = places.iter().find(&mut is_free);
            if let Some((anchor, x, y)) = free {
                text(out, class, *anchor, *x, *y, label);
            }
            free.is_some()
        };
        if let Some(peak) = &plot.peak {
            let (x, y) = (self.x(peak.at), self.value_y(peak.value, top));
            let beside = [Anchor::End, Anchor::Start, Anchor::Middle].map(|it| (it, x, y - 70));
            place("plot peak", &peak.label, &beside, whole.clone());
        }
        for (index, bound) in plot.bounds.iter().enumerate() {
            let left = if index == 0 { LEFT } else { self.x(bound.at) } + 40;
            let right = self.bound_end(index) - 40;
            let y = self.value_y(bound.value, top) - 60;
            let mut ends = [(Anchor::End, right, y), (Anchor::Start, left, y)];
            if self.crosses(bound.value, right) && !self.crosses(bound.value, left) {
                ends.reverse();
            }
            let number = count(bound.value);
            let _ = place("plot", &bound.label, &ends, left..=right)
                || place("plot", &number, &ends, left..=right);
        }
        for edge in plot.edges.iter().filter(|edge| !edge.label.is_empty()) {
            let (x, y) = (self.x(edge.at), self.y + 130);
            let beside = [(Anchor::Start, x + 50, y), (Anchor::End, x.saturating_sub(50), y)];
            place("plot", &edge.label, &beside, whole.clone());
        }
        for caption in &plot.captions {
            let (from, to) = (self.x(caption.from), self.x(caption.to));
            let y = self.y + self.height - 80;
            let at = [
                (Anchor::Middle, u64::midpoint(from, to), y),
                (Anchor::End, to.saturating_sub(80), y),
                (Anchor::Start, from + 80, y),
            ];
            let _ = caption.texts.iter().any(|text| {
                let mut free = at.to_vec();
                free.retain(|(anchor, x, y)| !self.is_on_line(anchor.extent(text, *x), *y, top));
                place("plot", text, &free, from..=to)
            });
        }
    }

    /// Whether values come near the line `value`, or above it, around `x`.
    fn crosses(&self, value: u64, x: u64) -> bool {
        let near = self.plot.series.iter().filter(|series| series.shape == Shape::Step);
        let mut near = near.flat_map(|series| series.values.iter().enumerate());
        near.any(|(index, it)| *it > value && self.edge(index).abs_diff(x) < 1500)
    }

    /// Whether a line runs through a text of that extent with the baseline `y`.
    fn is_on_line(&self, extent: Option<(u64, u64)>, y: u64, top: u64) -> bool {
        let Some((left, right)) = extent else { return false };
        let heights = y.saturating_sub(130)..=y + 50;
        let half = self.figure.width / 2;
        self.plot.series.iter().any(|series| {
            let at = |index: u64| match series.shape {
                Shape::Step => Some(self.x(index * self.figure.width)),
                Shape::Line => Some(self.x(index / 2 * self.figure.width + half * (index % 2))),
                Shape::Bars | Shape::Above => None,
            };
            let near = |index| at(index).is_some_and(|x| (left..=right).contains(&x));
            let mut values = (0..).zip(&series.values);
            values.any(|(index, value)| near(index) && heights.contains(&self.value_y(*value, top)))
        })
    }

    fn path(&self, out: &mut String, class: &str, path: &str) {
        if !path.is_empty() {
            let _ = writeln!(out, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    fn micros(&self, index: usize) -> u64 {
        u64::try_from(index).unwrap_or(0).saturating_mul(self.figure.width)
    }

    fn x(&self, micros: u64) -> u64 {
        x(self.figure, micros)
    }

    /// Where the span of that index begins.
    fn edge(&self, index: usize) -> u64 {
        self.x(self.micros(index))
    }

    fn value_y(&self, value: u64, top: u64) -> u64 {
        self.y + self.height - place(value.min(top), top, self.height)
    }
}
