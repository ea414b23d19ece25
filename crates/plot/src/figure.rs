//! What is to be seen, before it is drawn.

/// Policies one below the other, on one time axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figure {
    /// A few words.
    pub title: String,
    /// What can be seen, in sentences, for who cannot see it.
    pub description: String,
    /// What stands below the time axis: what its 0 is.
    pub axis: String,
    /// The length of a span in microseconds; each value of a series is about one.
    pub width: u64,
    /// Where 0 is, behind the beginning of the first span, in microseconds.
    pub origin: u64,
    /// One for each policy.
    pub rows: Vec<Row>,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its text.
    pub title: String,
    /// What it came to, in a few words.
    pub note: String,
    /// One below the other, the first one the tallest.
    pub plots: Vec<Plot>,
}

/// Series over one axis of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plot {
    /// What its values are.
    pub label: String,
    /// What is drawn, the first below the others.
    pub series: Vec<Series>,
    /// Intervals that stand out.
    pub marks: Vec<Mark>,
    /// Spans, by their index, in which a mark is set above all.
    pub flags: Vec<usize>,
    /// Moments at which the rule changes.
    pub changes: Vec<Change>,
}

/// Values over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// For the legend.
    pub name: &'static str,
    /// What it is about, which decides its colour.
    pub role: Role,
    /// How it is drawn.
    pub shape: Shape,
    /// One for each span, the first first; for a [`Shape::Line`] two.
    pub values: Vec<u64>,
}

/// What a series is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Requests that came.
    Offered,
    /// Requests that passed at once.
    Admitted,
    /// Requests that passed and had to wait.
    Delayed,
    /// Requests that did not pass.
    Denied,
    /// Requests that went on their way.
    Departed,
    /// What is left of a limit.
    Left,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An area, on top of those before it.
    Stack,
    /// A line in steps.
    Step,
    /// A line, with the area below it: for each span its value at the beginning and another one in
    /// the middle.
    Line,
}

/// An interval that stands out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Where it begins, in microseconds from the beginning of the first span.
    pub from: u64,
    /// Where it ends.
    pub to: u64,
    /// What is the matter.
    pub label: String,
}

/// The rule changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// When, in microseconds from the beginning of the first span.
    pub at: u64,
    /// To what.
    pub label: String,
}

impl Role {
    /// All, in the order of the legend.
    pub(crate) const ALL: [Self; 6] =
        [Self::Offered, Self::Admitted, Self::Delayed, Self::Denied, Self::Departed, Self::Left];

    /// The name of its class and colour.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Admitted => "admitted",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::Departed => "departed",
            Self::Left => "left",
        }
    }
}

impl Figure {
    /// How many spans there are.
    pub(crate) fn spans(&self) -> usize {
        let plots = self.rows.iter().flat_map(|row| &row.plots);
        let lengths = plots.flat_map(|plot| &plot.series).map(|series| match series.shape {
            Shape::Line => series.values.len() / 2,
            Shape::Stack | Shape::Step => series.values.len(),
        });
        lengths.max().unwrap_or(0)
    }

    /// The length of the time axis, in microseconds.
    pub(crate) fn length(&self) -> u64 {
        let spans = u64::try_from(self.spans()).unwrap_or(u64::MAX);
        spans.saturating_mul(self.width).max(1)
    }

    /// The series that occur, by role, each with its name.
    pub(crate) fn legend(&self) -> Vec<(Role, &'static str, Shape)> {
        let plots = || self.rows.iter().flat_map(|row| &row.plots);
        let of = |role| {
            let series = plots().flat_map(|plot| &plot.series);
            series.filter(move |it| it.role == role && it.values.iter().any(|value| *value > 0))
        };
        let found = Role::ALL.into_iter().filter_map(|role| of(role).next());
        found.map(|series| (series.role, series.name, series.shape)).collect()
    }

    /// Whether anything is flagged.
    pub(crate) fn has_flags(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.plots).any(|plot| !plot.flags.is_empty())
    }
}

impl Plot {
    /// The greatest value, stacked ones on top of each other.
    pub(crate) fn most(&self) -> u64 {
        let mut sums: Vec<u64> = Vec::new();
        let mut most = 0;
        for series in &self.series {
            if series.shape == Shape::Stack {
                if sums.len() < series.values.len() {
                    sums.resize(series.values.len(), 0);
                }
                for (sum, value) in sums.iter_mut().zip(&series.values) {
                    *sum = sum.saturating_add(*value);
                }
            } else {
                most = most.max(series.values.iter().copied().max().unwrap_or(0));
            }
        }
        most.max(sums.into_iter().max().unwrap_or(0))
    }
}
