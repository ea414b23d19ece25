//! Medians, and tables whose rows show whether a bar was reached.

use std::fmt;

/// The bar that a figure must reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
    /// No bar: the row is informative.
    None,
}

impl Bar {
    fn result(self, figure: f64) -> &'static str {
        let reached = match self {
            Self::AtLeast(bar) => figure >= bar,
            Self::AtMost(bar) => figure <= bar,
            Self::Below(bar) => figure < bar,
            Self::None => return "",
        };
        if reached { "ok" } else { "BELOW" }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(formatter, ">= {bar}"),
            Self::AtMost(bar) => write!(formatter, "<= {bar}"),
            Self::Below(bar) => write!(formatter, "< {bar}"),
            Self::None => Ok(()),
        }
    }
}

/// A peer in a comparison, and its figure as text.
#[derive(Debug)]
pub(crate) struct Peer<'a> {
    name: &'a str,
    figure: String,
}

impl<'a> Peer<'a> {
    pub(crate) const fn new(name: &'a str, figure: String) -> Self {
        Self { name, figure }
    }

    /// No peer: our figure has a bar of its own.
    pub(crate) const fn none() -> Self {
        Self::new("", String::new())
    }
}

/// Rows below a heading; each column is as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&it| it.to_owned()).collect()] }
    }

    /// A table that compares our figures with those of a peer.
    pub(crate) fn comparison() -> Self {
        Self::new(&["work", "ours", "against", "peer", "figure", "bar", ""])
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// A row of a [`comparison`](Self::comparison).
    pub(crate) fn compare(
        &mut self,
        work: &str,
        ours: String,
        peer: Peer<'_>,
        figure: f64,
        unit: &str,
        bar: Bar,
    ) {
        let texts = [
            work.to_owned(),
            ours,
            peer.name.to_owned(),
            peer.figure,
            // Below 1, a hundredth is a large difference.
            if figure < 1.0 {
                format!("{figure:.3} {unit}")
            } else {
                format!("{figure:.2} {unit}")
            },
            bar.to_string(),
            bar.result(figure).to_owned(),
        ];
        self.rows.push(texts.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Text is aligned left, and figures right.
                let figure = cell.starts_with(|it: char| it.is_ascii_digit());
                let cell =
                    if figure { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line += &cell;
                line += "  ";
            }
            writeln!(formatter, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The median.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median, over all rounds, of our figure divided by the peer's. Figures of one round are comparable, because the
/// speed of the machine may change between rounds.
pub(crate) fn ratio(ours: &[f64], peers: &[f64]) -> f64 {
    median(&ours.iter().zip(peers).map(|(ours, peer)| ours / peer).collect::<Vec<_>>())
}

/// Nanoseconds, in a fitting unit.
pub(crate) fn time(nanos: f64) -> String {
    match nanos {
        ..1e4 => format!("{nanos:.1} ns"),
        ..1e7 => format!("{:.1} us", nanos / 1e3),
        _ => format!("{:.1} ms", nanos / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_figure_up_to_bar_is_ok_or_below() {
        for (bar, figure, result) in [
            (Bar::AtLeast(2.0), 2.0, "ok"),
            (Bar::AtLeast(2.0), 1.9, "BELOW"),
            (Bar::AtMost(2.0), 2.0, "ok"),
            (Bar::Below(2.0), 2.0, "BELOW"),
            (Bar::None, 0.0, ""),
        ] {
            assert_eq!(bar.result(figure), result, "{bar} {figure}");
        }
    }

    #[test]
    fn median_of_three_is_the_middle_figure() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratio_is_median_of_ratios_of_rounds() {
        assert_eq!(ratio(&[8.0, 4.0, 30.0], &[10.0, 5.0, 10.0]), 0.8);
    }

    #[test]
    fn table_column_is_as_wide_as_its_widest_cell() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec!["long".to_owned(), "1".to_owned()]);
        table.row(vec!["x".to_owned(), "22".to_owned()]);
        assert_eq!(table.to_string(), "a     b\nlong   1\nx     22\n");
    }

    #[test]
    fn time_is_shown_in_fitting_unit() {
        assert_eq!(time(34.0), "34.0 ns");
        assert_eq!(time(99_000.0), "99.0 us");
        assert_eq!(time(21e6), "21.0 ms");
    }
}
