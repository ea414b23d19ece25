//! Medians, and rows that say whether a bar was reached.

use std::fmt;

/// What a figure is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
    /// Only to be known.
    None,
}

impl Bar {
    fn verdict(self, figure: f64) -> &'static str {
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

/// Rows under a heading, each cell as wide as the widest of its column.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&it| it.to_owned()).collect()] }
    }

    /// What was measured, ours and the peer's figure, and what is to be compared.
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
        (against, peer): (&str, String),
        figure: f64,
        unit: &str,
        bar: Bar,
    ) {
        let texts = [
            work.to_owned(),
            ours,
            against.to_owned(),
            peer,
            // Near a bar below 1, a hundredth is much.
            if figure < 1.0 {
                format!("{figure:.3} {unit}")
            } else {
                format!("{figure:.2} {unit}")
            },
            bar.to_string(),
            bar.verdict(figure).to_owned(),
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
                // Words to the left, figures to the right.
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

/// The middle one.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What ours is of the peer's: the middle one of what it was in each round. Two that were measured right after one another
/// had the same machine; ten seconds later it may be another.
pub(crate) fn ratio(ours: &[f64], peers: &[f64]) -> f64 {
    median(&ours.iter().zip(peers).map(|(ours, peer)| ours / peer).collect::<Vec<_>>())
}

/// Nanoseconds, in the unit that reads best.
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
    fn a_bar_is_reached_or_not() {
        for (bar, figure, verdict) in [
            (Bar::AtLeast(2.0), 2.0, "ok"),
            (Bar::AtLeast(2.0), 1.9, "BELOW"),
            (Bar::AtMost(2.0), 2.0, "ok"),
            (Bar::Below(2.0), 2.0, "BELOW"),
            (Bar::None, 0.0, ""),
        ] {
            assert_eq!(bar.verdict(figure), verdict, "{bar} {figure}");
        }
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_ratio_is_of_what_was_measured_together() {
        assert_eq!(ratio(&[8.0, 4.0, 30.0], &[10.0, 5.0, 10.0]), 0.8);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec!["long".to_owned(), "1".to_owned()]);
        table.row(vec!["x".to_owned(), "22".to_owned()]);
        assert_eq!(table.to_string(), "a     b\nlong   1\nx     22\n");
    }

    #[test]
    fn times_are_told_in_a_unit_that_fits() {
        assert_eq!(time(34.0), "34.0 ns");
        assert_eq!(time(99_000.0), "99.0 us");
        assert_eq!(time(21e6), "21.0 ms");
    }
}
