//! The content of a figure.

use crate::scale::{axis_spans, time_ticks};

/// Policies one below the other, on one time axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figure {
    /// Title.
    pub title: String,
    /// Alternative text.
    pub description: String,
    /// Text below the time axis, such as the meaning of its 0.
    pub axis: String,
    /// The length of a span in microseconds; each value of a series is about one.
    pub width: u64,
    /// Position of 0, in microseconds after the start of the first span.
    pub origin: u64,
    /// Labels of the horizontal axis. Without any, it is an axis of time. With some, a span is an interval of another quantity:
    /// positions are not microseconds, and bars are wide.
    pub ticks: Vec<Tick>,
    /// One for each policy.
    pub rows: Vec<Row>,
}

/// A label of the horizontal axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Its position, from the beginning of the first span.
    pub at: u64,
    /// Its text.
    pub label: String,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its text.
    pub title: String,
    /// Sentences below the title, each on a line of its own.
    pub notes: Vec<String>,
    /// One below the other.
    pub plots: Vec<Plot>,
}

/// Series over one axis of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plot {
    /// Name of its values, one word.
    pub label: String,
    /// Its size, and whether its values are written beside it.
    pub size: Size,
    /// The series; later ones are drawn over earlier ones.
    pub series: Vec<Series>,
    /// A horizontal line to compare the values with: steps, in order of time.
    pub bounds: Vec<Bound>,
    /// Boundaries in time: a line from top to bottom through the whole row.
    pub edges: Vec<Edge>,
    /// Intervals with a text in the middle of each.
    pub captions: Vec<Caption>,
    /// The value to mark.
    pub peak: Option<Peak>,
}

/// The height of a plot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// The main plot, with an axis of values.
    #[default]
    Tall,
    /// A strip below it, without values.
    Strip,
    /// A smaller plot with an axis of values.
    Small,
}

/// Values over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// For the legend.
    pub name: &'static str,
    /// Its meaning, which determines its colour.
    pub role: Role,
    /// How it is drawn.
    pub shape: Shape,
    /// One for each span, the first first; for a [`Shape::Line`] two.
    pub values: Vec<u64>,
}

/// Meaning of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Units in one period.
    Level,
    /// The bound that they are compared with.
    Bound,
    /// Units above the bound.
    Excess,
    /// Requests that were allowed at once.
    Admitted,
    /// Requests that were allowed and had to wait.
    Delayed,
    /// Requests that were denied.
    Denied,
    /// Requests that a queue sent.
    Sent,
    /// Remaining units of a limit.
    Left,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A thin bar for each span, on top of those before it.
    Bars,
    /// A line in steps, with the area below it.
    Step,
    /// The area between the bound and the value, where the value is not 0.
    Above,
    /// A line, with the area below it: for each span its value at the beginning and another one in
    /// the middle.
    Line,
}

/// A bound, from a moment on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Start, in microseconds from the start of the first span.
    pub at: u64,
    /// In the unit of the values.
    pub value: u64,
    /// Label.
    pub label: String,
}

/// A boundary in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// When, in microseconds from the beginning of the first span.
    pub at: u64,
    /// Label; may be empty.
    pub label: String,
}

/// A text about an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caption {
    /// Where it begins, in microseconds from the beginning of the first span.
    pub from: u64,
    /// Where it ends.
    pub to: u64,
    /// The text, and a shorter one that is used if the first does not fit.
    pub texts: [String; 2],
}

/// A value that is marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// When, in microseconds from the beginning of the first span.
    pub at: u64,
    /// The value.
    pub value: u64,
    /// Label.
    pub label: String,
}

impl Role {
    /// All, in the order of the legend.
    pub(crate) const ALL: [Self; 8] = [
        Self::Level,
        Self::Bound,
        Self::Excess,
        Self::Admitted,
        Self::Delayed,
        Self::Denied,
        Self::Sent,
        Self::Left,
    ];

    /// The name of its class and colour.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Level => "level",
            Self::Bound => "bound",
            Self::Excess => "excess",
            Self::Admitted => "allowed",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::Sent => "sent",
            Self::Left => "remaining",
        }
    }
}

impl Figure {
    /// Number of spans.
    pub(crate) fn spans(&self) -> usize {
        let plots = self.rows.iter().flat_map(|row| &row.plots);
        let lengths = plots.flat_map(|plot| &plot.series).map(|series| match series.shape {
            Shape::Line => series.values.len() / 2,
            Shape::Bars | Shape::Step | Shape::Above => series.values.len(),
        });
        lengths.max().unwrap_or(0)
    }

    /// The length of the time axis, in microseconds.
    pub(crate) fn length(&self) -> u64 {
        let spans = u64::try_from(self.spans()).unwrap_or(u64::MAX);
        spans.saturating_mul(self.width).max(1)
    }

    /// Positions and texts along the horizontal axis, at most `most` of time.
    pub(crate) fn axis_ticks(&self, most: u64) -> Vec<(u64, String)> {
        if !self.ticks.is_empty() {
            return self.ticks.iter().map(|tick| (tick.at, tick.label.clone())).collect();
        }
        let values = time_ticks(self.length().saturating_sub(self.origin), most);
        let texts = axis_spans(&values);
        values.iter().map(|value| self.origin + value).zip(texts).collect()
    }

    /// The series that occur, by role, each with its name.
    pub(crate) fn legend(&self) -> Vec<(Role, &'static str, Shape)> {
        let plots = || self.rows.iter().flat_map(|row| &row.plots);
        let of = |role| {
            let series = plots().flat_map(|plot| &plot.series);
            series.filter(move |it| it.role == role && it.values.iter().any(|value| *value > 0))
        };
        let found = |role| match role {
            Role::Bound => {
                let has_bounds = plots().any(|plot| !plot.bounds.is_empty());
                has_bounds.then_some((role, "limit", Shape::Line))
            }
            _ => of(role).next().map(|series| (role, series.name, series.shape)),
        };
        Role::ALL.into_iter().filter_map(found).collect()
    }
}

impl Plot {
    /// The maximum value, with bars on top of each other.
    pub(crate) fn max_value(&self) -> u64 {
        let bars = |series: &&Series| series.shape == Shape::Bars;
        let others = self.series.iter().filter(|series| !bars(series));
        let most = others.flat_map(|series| &series.values).copied().max().unwrap_or(0);
        let spans = self.series.iter().filter(bars).map(|series| series.values.len()).max();
        let total = (0..spans.unwrap_or(0)).map(|index| self.total(index)).max();
        most.max(total.unwrap_or(0))
    }

    /// The bars of a span, on top of each other.
    pub(crate) fn total(&self, index: usize) -> u64 {
        let bars = self.series.iter().filter(|series| series.shape == Shape::Bars);
        let values = bars.filter_map(|series| series.values.get(index));
        values.fold(0, |sum, value| sum.saturating_add(*value))
    }

    /// The upper end of the axis of values: above the greatest, with space for a text where there
    /// is one.
    pub(crate) fn top(&self) -> u64 {
        let bound = self.bounds.iter().map(|bound| bound.value).max().unwrap_or(0);
        let most = self.max_value().max(bound);
        let space = if self.size == Size::Tall { (most / 4).max(1) } else { 0 };
        most.saturating_add(space).max(1)
    }

    /// The bound at a moment.
    pub(crate) fn bound_at(&self, micros: u64) -> u64 {
        let until = self.bounds.iter().take_while(|bound| bound.at <= micros);
        until.last().or(self.bounds.first()).map_or(0, |bound| bound.value)
    }
}
