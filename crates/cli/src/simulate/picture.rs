//! The chart of a simulation.

use sluicegate_core::human::span;
use sluicegate_plot::{
    Bound, Caption, Edge, Figure, Page, Peak, Plot, Role, Row, Series, Shape, Size, Table,
    span as exact,
};
use sluicegate_simulator::{Bin, CountedWindow, Spans, TimeSeries};

use super::{compare, lane::Lane, lane::Lanes, options::Simulate};
use crate::{
    format::moment,
    table::{duration_text, key_cell},
};

/// Maximum number of spans in a chart.
const MAX_SPANS: usize = 240;
/// Maximum length of a line of notes.
const MAX_NOTE: usize = 66;
/// Maximum number of window boundaries that are marked.
const MAX_EDGES: usize = 24;

/// All policies on one time axis.
pub(super) fn figure(options: &Simulate, lanes: &Lanes, key: Option<&[u8]>) -> Figure {
    let tracks = || lanes.all().iter().filter_map(Lane::track);
    let width = tracks().map(|track| track.width_for(MAX_SPANS)).max().unwrap_or(0);
    let first = lanes.first().map_or(0, |first| first.as_micros());
    let mut start = first;
    let mut rows = Vec::new();
    let mut sentences = Vec::new();
    let only = lanes.all().len() == 1;
    for lane in lanes.all() {
        let Some(track) = lane.track() else { continue };
        let spans = track.spans(width);
        start = spans.start;
        let notes = notes(lane, track);
        sentences.push(format!("{}: {}.", lane.name(), notes.join("; ")));
        let level = level(track, &spans, first, level_name(tracks()));
        rows.push(Row { title: lane.name(), notes, plots: plots(lane, &spans, level, only) });
    }
    let mut axis = format!("Bars: requests per {}. ", exact(width));
    if let Some(key) = key.filter(|_| tracks().any(TimeSeries::has_other_keys)) {
        let key = key_cell(key);
        axis = format!("Line: key {key}\nBars: requests of all keys per {}. ", exact(width));
    }
    axis += &format!("Time 0 is {}.", moment(first));
    Figure {
        title: options
            .title
            .clone()
            .unwrap_or_else(|| "Effect of the policy on traffic".to_owned()),
        description: sentences.join(" "),
        axis,
        width: width.max(1),
        origin: first.saturating_sub(start),
        ticks: Vec::new(),
        rows,
    }
}

/// A page with the comparison, the figure, and the numbers that it is drawn from.
pub(super) fn page(figure: Figure, lanes: &Lanes) -> Page {
    let first = lanes.first().map_or(0, |first| first.as_micros());
    let details = lanes.all().iter().filter_map(|lane| {
        let track = lane.track()?;
        Some(numbers(&lane.name(), track, &track.spans(figure.width), first))
    });
    // On a page, the caption names the table, and the first heading its rows.
    let tables = compare::tables(lanes.all()).into_iter().zip(["policy", "policy", "key"]);
    let tables = tables.map(|(mut table, rows)| {
        rows.clone_into(&mut table.heading[0]);
        table
    });
    Page {
        title: figure.title.clone(),
        paragraphs: vec![format!("The first request is at {}.", moment(first))],
        tables: tables.collect(),
        details: details.collect(),
        figure,
    }
}

/// Notes on a policy, each on a line.
fn notes(lane: &Lane, track: &TimeSeries) -> Vec<String> {
    let totals = lane.report().totals();
    let mut note = format!("{} of {} requests allowed", totals.allowed, totals.requests);
    if let Some(bounds) = track.bounds().first()
        && let Some(bound) = bounds.limits.get(limit_to_draw(track))
    {
        let peak = track.peaks()[limit_to_draw(track)].units;
        note += &match bound.counts_holds {
            true => format!(", at most {peak} units in flight"),
            false => format!(", at most {peak} units in any {}", duration_text(bound.period)),
        };
    }
    let mut notes = vec![note];
    if totals.delayed > 0 {
        let longest = duration_text(totals.longest_delay);
        notes.push(format!("{} requests delayed by up to {longest}", totals.delayed));
    }
    if totals.expired > 0 {
        notes.push(compare::expired(lane));
    }
    let mut joined = String::new();
    for change in lane.changes() {
        let change = format!("after {}: {}", duration_text(change.after), change.policy);
        if !joined.is_empty() && joined.len() + change.len() > MAX_NOTE {
            notes.push(std::mem::take(&mut joined));
        }
        joined += if joined.is_empty() { "" } else { "; " };
        joined += &change;
    }
    notes.extend((!joined.is_empty()).then_some(joined));
    notes
}

/// The limit of a policy to draw: the one that is exceeded most, otherwise the one that is used most.
fn limit_to_draw(track: &TimeSeries) -> usize {
    if let Some(worst) = track.worst() {
        return worst.limit;
    }
    let bounds = track.bounds().first().map_or(&[][..], |bounds| &bounds.limits);
    let peaks = track.peaks();
    let share = |index: usize| {
        let bound = u128::from(bounds[index].units().max(1));
        u128::from(peaks[index].units) * u128::from(u32::MAX) / bound
    };
    let indices = 0..bounds.len().min(peaks.len());
    indices.rev().max_by_key(|index| share(*index)).unwrap_or(0)
}

/// The plots of a policy: its level, the requests and, of the `only` policy, the remaining units.
fn plots(lane: &Lane, spans: &Spans, level: Option<Plot>, only: bool) -> Vec<Plot> {
    let counts = |field: fn(&Bin) -> u64| -> Vec<u64> { spans.bins.iter().map(field).collect() };
    let series = |name, role, values| Series { name, role, shape: Shape::Bars, values };
    let mut plots: Vec<Plot> = level.into_iter().collect();
    plots.push(Plot {
        label: "offered".to_owned(),
        size: Size::Strip,
        series: vec![
            series("allowed", Role::Admitted, counts(|it| it.admitted - it.delayed)),
            series("delayed", Role::Delayed, counts(|it| it.delayed)),
            series("denied", Role::Denied, counts(|it| it.denied)),
        ],
        ..Plot::default()
    });
    if lane.report().totals().delayed > 0 {
        plots.push(Plot {
            label: "sent".to_owned(),
            size: Size::Strip,
            series: vec![series("sent", Role::Sent, counts(|it| it.sent))],
            ..Plot::default()
        });
    }
    if only {
        plots.extend(remaining(spans));
    }
    plots
}

/// The unit of the lines of `tracks`: units in flight under a `concurrency` limit, else those in any period.
fn level_name<'a>(mut tracks: impl Iterator<Item = &'a TimeSeries>) -> &'static str {
    let counts_holds = |track: &TimeSeries| {
        let bounds = track.bounds().first().and_then(|it| it.limits.get(limit_to_draw(track)));
        bounds.is_some_and(|bound| bound.counts_holds)
    };
    match tracks.next().map(counts_holds) {
        Some(first) if tracks.any(|track| counts_holds(track) != first) => {
            "units in one period, or in flight"
        }
        Some(true) => "units in flight",
        _ => "units in one period",
    }
}

/// Units in any period or in flight, and their bound.
fn level(track: &TimeSeries, spans: &Spans, first: u64, name: &'static str) -> Option<Plot> {
    let index = limit_to_draw(track);
    let offset = |micros: u64| micros.saturating_sub(spans.start);
    let bounds: Vec<Bound> = track
        .bounds()
        .iter()
        .filter_map(|bounds| {
            let bound = bounds.limits.get(index)?;
            let label = match bound.burst {
                0 => format!("limit {}", bound.limit),
                burst => format!("burst {burst} + limit {} - 1 = {}", bound.limit, bound.units()),
            };
            Some(Bound { at: offset(bounds.from), value: bound.units(), label })
        })
        .collect();
    // Without a policy there is no line.
    bounds.first()?;
    let levels = || spans.bins.iter().map(|bin| bin.levels[index]);
    let exceeding = levels().map(|level| if level.exceeds { level.units } else { 0 });
    let peak = track.worst().map(|worst| Peak {
        at: offset(worst.to),
        value: worst.units,
        label: match worst.to - worst.from {
            0 => format!("{} at once", worst.units),
            length => format!("{} in {}", worst.units, span(rounded(length))),
        },
    });
    let end = spans.start + spans.width * u64::try_from(spans.bins.len()).unwrap_or(0);
    let (edges, captions) = windows(track.windows(), spans.start, first, end);
    let series = |name, role, shape, values| Series { name, role, shape, values };
    Some(Plot {
        series: vec![
            series(name, Role::Level, Shape::Step, levels().map(|it| it.units).collect()),
            series("over the limit", Role::Excess, Shape::Above, exceeding.collect()),
        ],
        bounds,
        edges,
        captions,
        peak,
        ..Plot::default()
    })
}

/// The boundaries of windows, and the units counted in each.
fn windows(
    windows: &[CountedWindow],
    start: u64,
    first: u64,
    end: u64,
) -> (Vec<Edge>, Vec<Caption>) {
    let on_clock = windows.iter().all(|window| window.is_on_clock);
    let name = |window: &CountedWindow| match window.to - window.from {
        _ if !on_clock => "window",
        60_000_000 => "minute",
        3_600_000_000 => "hour",
        86_400_000_000 => "day",
        _ => "window",
    };
    // The first window begins with the first request, or before.
    let begins = windows.iter().skip(1).map(|window| window.from);
    let mut at: Vec<u64> = windows.iter().map(|window| window.to).chain(begins).collect();
    at.retain(|at| (first + 1..end).contains(at));
    at.sort_unstable();
    at.dedup();
    if at.len() > MAX_EDGES {
        return (Vec::new(), Vec::new());
    }
    let label = |index: usize| match (index, on_clock) {
        (0, true) => format!("next {}", windows.first().map_or("window", name)),
        (0, false) => "window ends".to_owned(),
        _ => String::new(),
    };
    let edge = |(index, at): (usize, &u64)| Edge { at: at - start, label: label(index) };
    let edges = at.iter().enumerate().map(edge).collect();
    let caption = |window: &CountedWindow| Caption {
        from: window.from.max(start) - start,
        to: window.to.min(end).saturating_sub(start),
        texts: [format!("{} in this {}", window.units, name(window)), window.units.to_string()],
    };
    (edges, windows.iter().map(caption).collect())
}

/// Remaining units of the followed key.
fn remaining(spans: &Spans) -> Option<Plot> {
    // Before its first request, a key is unused.
    let mut last = spans.bins.iter().filter_map(|bin| bin.left).map(|(first, _)| first).max()?;
    let mut values = Vec::with_capacity(2 * spans.bins.len());
    for bin in &spans.bins {
        let (first, least) = bin.left.unwrap_or((last, last));
        values.extend([u64::from(first), u64::from(least)]);
        last = least;
    }
    let series = Series { name: "remaining", role: Role::Left, shape: Shape::Line, values };
    Some(Plot {
        label: "remaining".to_owned(),
        size: Size::Small,
        series: vec![series],
        ..Plot::default()
    })
}

/// A span in microseconds, rounded to two digits.
fn rounded(micros: u64) -> u64 {
    let mut unit = 1_u64;
    while micros / unit >= 100 {
        unit *= 10;
    }
    (micros + unit / 2) / unit * unit
}

/// The numbers that a figure is drawn from.
fn numbers(name: &str, track: &TimeSeries, spans: &Spans, first: u64) -> Table {
    let index = limit_to_draw(track);
    let level = level_name([track].into_iter());
    let heading = ["from", "offered", "allowed", "delayed", "denied", "sent", level, "remaining"];
    let rows = (0_u64..).zip(&spans.bins).map(|(number, bin)| {
        let start = spans.start + number * spans.width;
        let level = bin.levels[index].units;
        let counts = [bin.offered, bin.admitted, bin.delayed, bin.denied, bin.sent, level];
        let left = bin.left.map_or_else(String::new, |(_, least)| least.to_string());
        let from = match start.checked_sub(first) {
            Some(after) => exact(after),
            None => format!("-{}", exact(first - start)),
        };
        [from].into_iter().chain(counts.map(|it| it.to_string())).chain([left]).collect()
    });
    Table {
        caption: format!("{name}: the numbers per {}", exact(spans.width)),
        heading: heading.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_keeps_two_digits() {
        assert_eq!(
            [0, 7, 99, 149, 1_990_000, 2_550_001, 59_900_000].map(rounded),
            [0, 7, 99, 150, 2_000_000, 2_600_000, 60_000_000]
        );
    }
}
