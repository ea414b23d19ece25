//! The chart of a recommendation: how many keys send how much, and what the candidates admit.

use sluicegate_plot::{Edge, Figure, Plot, Role, Row, Series, Shape, Tick};
use sluicegate_simulator::{Outcome, Point, Recommendation};

/// The lower ends of the bars in each power of ten, in tenths.
const STEPS: [u64; 6] = [10, 15, 20, 30, 50, 70];
/// The width of a bar.
const WIDTH: u64 = 1000;
/// Maximum length of a line below the axis, as wide as a small screen shows it.
const MAX_LINE: usize = 70;
/// A kind of keys: its name, its colour, and which they are.
type Kind = (&'static str, Role, fn(&Point) -> bool);
/// The kinds of keys.
const KINDS: [Kind; 3] = [
    ("like people", Role::Admitted, |it| !it.is_denied && !it.is_machine),
    ("like machines", Role::Delayed, |it| !it.is_denied && it.is_machine),
    ("keys that the recommended policy denies", Role::Denied, |it| it.is_denied),
];

pub(super) fn figure(found: &Recommendation) -> Figure {
    let points = found.points.iter().map(|point| point.busiest);
    let bounds = found.outcomes.iter().map(|outcome| outcome.ten_minutes);
    let scale = Scale::new(points.chain(bounds).max().unwrap_or(1));
    let edge =
        |outcome: &Outcome| Edge { at: scale.position(outcome.ten_minutes), label: String::new() };
    let edges: Vec<Edge> = found.outcomes.iter().map(edge).collect();
    let row = |title: &str, of: fn(&Point) -> u64| {
        let series = |(name, role, is): Kind| {
            let mut values = vec![0; scale.starts.len()];
            for point in found.points.iter().filter(|point| is(point)) {
                values[scale.bar(point.busiest)] += of(point);
            }
            Series { name, role, shape: Shape::Bars, values }
        };
        let plot = Plot {
            series: KINDS.into_iter().map(series).collect(),
            edges: edges.clone(),
            ..Plot::default()
        };
        Row { title: title.to_owned(), notes: Vec::new(), plots: vec![plot] }
    };
    Figure {
        title: "Requests of each key, and what the candidates admit".to_owned(),
        description: description(found),
        axis: axis(found),
        width: WIDTH,
        origin: 0,
        ticks: scale.ticks(),
        rows: vec![row("keys", |it| it.keys), row("requests", |it| it.keys * it.requests)],
    }
}

/// What the axis and the lines mean.
fn axis(found: &Recommendation) -> String {
    let named = found.named.map(|(index, _)| index);
    let name = |(index, outcome): (usize, &Outcome)| match named == Some(index) {
        true => format!("{} (recommended)", outcome.policy),
        false => outcome.policy.to_string(),
    };
    let names: Vec<String> = found.outcomes.iter().enumerate().map(name).collect();
    let mut text = "Requests of a key in its busiest ten minutes, on a logarithmic scale.\n\
                    Dotted lines: what a candidate admits in ten minutes. From the left:"
        .to_owned();
    let mut line = MAX_LINE;
    for (index, name) in names.iter().enumerate() {
        let comma = if index + 1 < names.len() { "," } else { "." };
        let is_full = line + name.len() >= MAX_LINE;
        line = if is_full { 0 } else { line } + name.len() + 2;
        text += if is_full { "\n" } else { " " };
        text += name;
        text += comma;
    }
    text
}

fn description(found: &Recommendation) -> String {
    let mut text =
        format!("{} keys look like people, {} like machines.", found.people, found.machines);
    for outcome in &found.outcomes {
        text += &format!(
            " {} admits at most {} in ten minutes, and denies requests of {} keys.",
            outcome.policy, outcome.ten_minutes, outcome.keys
        );
    }
    text
}

/// A logarithmic scale in bars.
struct Scale {
    /// The least value of each bar.
    starts: Vec<u64>,
}

impl Scale {
    /// From 1 to at least `most`.
    fn new(most: u64) -> Self {
        let mut starts = Vec::new();
        let mut power = 1_u64;
        while starts.last().is_none_or(|last| *last <= most) && power <= u64::MAX / 100 {
            starts.extend(STEPS.iter().map(|step| step * power / 10));
            // The first power has whole numbers alone.
            starts.dedup();
            power *= 10;
        }
        let needed = starts.partition_point(|start| *start <= most);
        starts.truncate(needed.max(1));
        Self { starts }
    }

    /// The bar of a value.
    fn bar(&self, value: u64) -> usize {
        self.starts.partition_point(|start| *start <= value).saturating_sub(1)
    }

    /// Where a value is, in parts of bars.
    fn position(&self, value: u64) -> u64 {
        let bar = self.bar(value);
        let start = self.starts[bar];
        let end = self.starts.get(bar + 1).copied().unwrap_or(start.saturating_mul(2));
        let (part, whole) = ((value - start).min(end - start), (end - start).max(1));
        let part = part.saturating_mul(WIDTH) / whole;
        u64::try_from(bar).unwrap_or(0) * WIDTH + part
    }

    fn ticks(&self) -> Vec<Tick> {
        let is_power =
            |value: u64| value.checked_ilog10().is_some_and(|it| 10_u64.pow(it) == value);
        let powers = self.starts.iter().filter(|start| is_power(**start));
        let tick = |start: &u64| Tick { at: self.position(*start), label: start.to_string() };
        powers.map(tick).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_has_a_bar_for_every_value() {
        let scale = Scale::new(120);
        assert_eq!(scale.starts, [1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100]);
        let bars = [1, 2, 4, 9, 10, 14, 15, 99, 100, 120].map(|value| scale.bar(value));
        assert_eq!(bars, [0, 1, 2, 4, 5, 5, 6, 10, 11, 11]);
        assert_eq!(
            [1, 10, 12, 25, 100, 120].map(|it| scale.position(it)),
            [0, 5000, 5400, 7500, 11_000, 11_200]
        );
        let ticks: Vec<_> = scale.ticks().into_iter().map(|tick| tick.label).collect();
        assert_eq!(ticks, ["1", "10", "100"]);
        assert_eq!(Scale::new(1).starts, [1]);
        let last = Scale::new(u64::MAX);
        assert!(last.position(u64::MAX) <= u64::try_from(last.starts.len()).unwrap() * WIDTH);
    }
}
