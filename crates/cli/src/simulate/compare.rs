//! Policies side by side, as tables.

use std::io::Write;

use sluicegate_plot::Table;

use super::lane::Lane;
use crate::{
    table::{share, words},
    words::span,
};

/// What passes, and the most in windows.
pub(super) fn tables(lanes: &[Lane]) -> [Table; 2] {
    let text = |it: &str| it.to_owned();
    let heading = ["policy", "offered", "allowed", "", "denied", "delayed", "longest delay"];
    let outcomes = Table {
        caption: text("What each policy did"),
        heading: heading.map(text).to_vec(),
        rows: lanes
            .iter()
            .map(|lane| {
                let report = lane.report();
                vec![
                    lane.name(),
                    report.requests().to_string(),
                    report.allowed().to_string(),
                    share(report.allowed(), report.requests()).trim_start().to_owned(),
                    report.denied().to_string(),
                    report.delayed().to_string(),
                    words(report.longest_delay()),
                ]
            })
            .collect(),
    };
    let spans = lanes.first().map_or_else(Vec::new, |lane| {
        lane.report().most_admitted().map(|most| words(most.span)).collect()
    });
    let most = Table {
        caption: text("The most that departed in any interval"),
        heading: [text("most departed in any")].into_iter().chain(spans).collect(),
        rows: lanes
            .iter()
            .map(|lane| {
                let most = lane.report().most_departed().map(|most| most.count.to_string());
                [lane.name()].into_iter().chain(most).collect()
            })
            .collect(),
    };
    [outcomes, most]
}

pub(super) fn print(lanes: &[Lane], out: &mut impl Write) -> anyhow::Result<()> {
    for (index, table) in tables(lanes).iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write_table(table, out)?;
    }
    for lane in lanes.iter().filter(|lane| !lane.changes().is_empty()) {
        writeln!(out, "\n{}", lane.name())?;
        for change in lane.changes() {
            let after = span(u64::try_from(change.after.as_micros()).unwrap_or(u64::MAX));
            writeln!(out, "  from {after} on {}", change.policy)?;
        }
    }
    Ok(())
}

/// Each column as wide as its widest cell: words to the left, figures to the right.
fn write_table(table: &Table, out: &mut impl Write) -> anyhow::Result<()> {
    let lines = || [&table.heading].into_iter().chain(&table.rows);
    let width = |column: usize| {
        let cells = lines().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.heading.len()).map(width).collect();
    for row in lines() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
