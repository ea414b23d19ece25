//! What happened, as a figure.

use sluicegate_plot::{
    Change, Figure, Mark, Page, Plot, Role, Row, Series, Shape, Table, span as exact,
};
use sluicegate_simulator::{Spans, Track};

use super::{compare, lane::Lane, lane::Lanes, options::Simulate};
use crate::{
    table::{shown, words},
    words::moment,
};

/// Most spans of a picture.
const SPANS: usize = 150;

/// All policies on one time axis.
pub(super) fn figure(options: &Simulate, lanes: &Lanes, key: Option<&[u8]>) -> Figure {
    let tracks = || lanes.all().iter().filter_map(Lane::track);
    let width = tracks().map(|track| track.width_for(SPANS)).max().unwrap_or(0);
    let first = lanes.first().map_or(0, |first| first.as_micros());
    let mut start = first;
    let mut rows = Vec::new();
    let mut said = Vec::new();
    for lane in lanes.all() {
        let Some(track) = lane.track() else { continue };
        let spans = track.spans(width);
        start = spans.start;
        said.push(sentence(lane, track));
        rows.push(row(lane, track, &spans, first));
    }
    let mut axis = format!("0 is {}", moment(first));
    if let Some(key) = key {
        axis += &format!("; units left of {}", shown(key));
    }
    Figure {
        title: options.title.clone().unwrap_or_else(|| "What a policy does to traffic".to_owned()),
        description: said.join(" "),
        axis,
        width: width.max(1),
        origin: first.saturating_sub(start),
        rows,
    }
}

/// A page with the comparison, the figure, and the numbers that it is drawn from.
pub(super) fn page(figure: Figure, lanes: &Lanes) -> Page {
    let first = lanes.first().map_or(0, |first| first.as_micros());
    let details = lanes.all().iter().filter_map(|lane| {
        let spans = lane.track()?.spans(figure.width);
        Some(numbers(&lane.name(), &spans, first))
    });
    Page {
        title: figure.title.clone(),
        paragraphs: vec![figure.axis.clone()],
        tables: compare::tables(lanes.all()).into(),
        details: details.collect(),
        figure,
    }
}

/// What can be seen of a policy.
fn sentence(lane: &Lane, track: &Track) -> String {
    let report = lane.report();
    let mut said = format!(
        "{}: of {} requests {} pass, {} are denied",
        lane.name(),
        report.requests(),
        report.allowed(),
        report.denied()
    );
    if report.delayed() > 0 {
        let longest = words(report.longest_delay());
        said += &format!(", {} wait, {longest} at the longest", report.delayed());
    }
    if let Some(over) = track.worst() {
        let period = words(over.period);
        said +=
            &format!("; {} units pass within {period}, the limit is {}", over.units, over.limit);
    }
    said + "."
}

fn row(lane: &Lane, track: &Track, spans: &Spans, first: u64) -> Row {
    let report = lane.report();
    let mut note = format!("{} of {} pass", report.allowed(), report.requests());
    if report.delayed() > 0 {
        note += &format!(", {} later", report.delayed());
    }
    let counts = |field: fn(&sluicegate_simulator::Bin) -> u64| -> Vec<u64> {
        spans.bins.iter().map(field).collect()
    };
    let series = |name, role, shape, values| Series { name, role, shape, values };
    let mut requests = vec![
        series("passed", Role::Admitted, Shape::Stack, counts(|it| it.admitted - it.delayed)),
        series("passed, delayed", Role::Delayed, Shape::Stack, counts(|it| it.delayed)),
        series("denied", Role::Denied, Shape::Stack, counts(|it| it.denied)),
        series("offered", Role::Offered, Shape::Step, counts(|it| it.offered)),
    ];
    if report.delayed() > 0 {
        requests.push(series("departed", Role::Departed, Shape::Step, counts(|it| it.departed)));
    }
    let worst = track.worst().map(|over| Mark {
        from: over.from.saturating_sub(spans.start),
        to: over.to.saturating_sub(spans.start),
        label: format!("{} within {}", over.units, words(over.period)),
    });
    let flags = spans.bins.iter().enumerate().filter(|(_, bin)| bin.over > 0);
    let changes: Vec<Change> = lane
        .changes()
        .iter()
        .map(|change| {
            let after = u64::try_from(change.after.as_micros()).unwrap_or(u64::MAX);
            let at = first.saturating_add(after).saturating_sub(spans.start);
            Change { at, label: change.policy.to_string() }
        })
        .filter(|change| change.at <= spans.width * u64::try_from(spans.bins.len()).unwrap_or(0))
        .collect();
    let mut plots = vec![Plot {
        label: format!("per {}", exact(spans.width)),
        series: requests,
        marks: worst.into_iter().collect(),
        flags: flags.map(|(index, _)| index).collect(),
        changes,
    }];
    // Where nothing is known, it is as if nothing had been used: before the first request.
    let most = spans.bins.iter().filter_map(|bin| bin.left).map(|(first, _)| first).max();
    if let Some(most) = most {
        let mut last = most;
        let mut values = Vec::with_capacity(2 * spans.bins.len());
        for bin in &spans.bins {
            let (first, least) = bin.left.unwrap_or((last, last));
            values.extend([u64::from(first), u64::from(least)]);
            last = least;
        }
        plots.push(Plot {
            label: "units left".to_owned(),
            series: vec![series("units left", Role::Left, Shape::Line, values)],
            ..Plot::default()
        });
    }
    Row { title: lane.name(), note, plots }
}

/// What a figure is drawn from.
fn numbers(name: &str, spans: &Spans, first: u64) -> Table {
    let heading = ["from", "offered", "passed", "delayed", "denied", "departed", "units left"];
    let rows = (0_u64..).zip(&spans.bins).map(|(index, bin)| {
        let start = spans.start + index * spans.width;
        let counts = [bin.offered, bin.admitted, bin.delayed, bin.denied, bin.departed];
        let left = bin.left.map_or_else(String::new, |(_, least)| least.to_string());
        let from = match start.checked_sub(first) {
            Some(after) => exact(after),
            None => format!("-{}", exact(first - start)),
        };
        [from].into_iter().chain(counts.map(|it| it.to_string())).chain([left]).collect()
    });
    Table {
        caption: format!("{name}: per {}", exact(spans.width)),
        heading: heading.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}
