//! Policies side by side, as tables.

use std::io::Write;

use sluicegate_plot::Table;
use sluicegate_simulator::{BusyKey, MAX_BUSY_KEYS};

use super::lane::Lane;
use crate::table::{BUSIEST, duration_text, key_cell, share, write_table};

/// The results of each policy, the most in windows, and for a single policy the busiest keys.
pub(super) fn tables(lanes: &[Lane]) -> Vec<Table> {
    let mut tables = vec![outcomes(lanes), most_sent(lanes)];
    tables.extend(leases(lanes));
    if let [lane] = lanes {
        tables.extend(busiest(lane));
    }
    tables
}

fn outcomes(lanes: &[Lane]) -> Table {
    let delays = lanes.iter().any(|lane| lane.report().totals().delayed > 0);
    let flights = lanes.iter().any(|lane| lane.report().totals().max_in_flight > 0);
    let mut heading = vec!["policy", "offered", "allowed", "", "denied", ""];
    if delays {
        heading.extend(["delayed", "longest delay"]);
    }
    if flights {
        heading.push("most in flight");
    }
    let row = |lane: &Lane| {
        let totals = lane.report().totals();
        let share = |part| share(part, totals.requests).trim_start().to_owned();
        let mut row = vec![
            lane.name(),
            totals.requests.to_string(),
            totals.allowed.to_string(),
            share(totals.allowed),
            totals.denied().to_string(),
            share(totals.denied()),
        ];
        if delays {
            row.extend([totals.delayed.to_string(), duration_text(totals.longest_delay)]);
        }
        if flights {
            row.push(totals.max_in_flight.to_string());
        }
        row
    };
    Table {
        caption: "Requests".to_owned(),
        heading: heading.into_iter().map(str::to_owned).collect(),
        rows: lanes.iter().map(row).collect(),
    }
}

fn most_sent(lanes: &[Lane]) -> Table {
    let spans = lanes.first().map_or_else(Vec::new, |lane| {
        lane.report().peak_admitted().map(|most| duration_text(most.span)).collect()
    });
    let row = |lane: &Lane| {
        let most = lane.report().peak_sent().map(|most| most.count.to_string());
        [lane.name()].into_iter().chain(most).collect()
    };
    Table {
        caption: "Most requests sent in any interval of".to_owned(),
        heading: ["most sent within".to_owned()].into_iter().chain(spans).collect(),
        rows: lanes.iter().map(row).collect(),
    }
}

/// What leases of each policy did, compared with asking the store each time.
fn leases(lanes: &[Lane]) -> Option<Table> {
    let asking = |place: usize| lanes[..place].last().filter(|it| it.fleet().is_none());
    let row = |(place, lane): (usize, &Lane)| {
        let fleet = lane.fleet()?;
        let (totals, allowed) = (fleet.totals(), lane.report().totals().allowed);
        let by_asking = asking(place).map(|it| it.report().totals().allowed);
        Some(vec![
            lane.name(),
            fleet.processes().to_string(),
            by_asking.map_or(String::new(), |all| share(allowed, all).trim_start().to_owned()),
            totals.excess.to_string(),
            totals.bound.to_string(),
            totals.asked.to_string(),
            share(totals.asked, totals.decided).trim_start().to_owned(),
        ])
    };
    let rows: Vec<_> = lanes.iter().enumerate().filter_map(row).collect();
    let heading = ["leases", "processes", "allowed of asking", "most over", "bound", "asked", ""];
    (!rows.is_empty()).then(|| Table {
        caption: "Leases: units over the policy in any interval, and commands to the store"
            .to_owned(),
        heading: heading.map(str::to_owned).to_vec(),
        rows,
    })
}

/// The busiest keys, where they are counted.
fn busiest(lane: &Lane) -> Option<Table> {
    let (keys, _) = lane.report().keys()?.busiest(BUSIEST);
    let row = |busy: &BusyKey<'_>| {
        let denied = busy.denied.to_string();
        let share = share(busy.denied, busy.requests).trim_start().to_owned();
        vec![key_cell(busy.key), busy.requests.to_string(), denied, share]
    };
    (!keys.is_empty()).then(|| Table {
        caption: "Busiest keys".to_owned(),
        heading: ["busiest keys", "offered", "denied", ""].map(str::to_owned).to_vec(),
        rows: keys.iter().map(row).collect(),
    })
}

pub(super) fn print(lanes: &[Lane], out: &mut impl Write) -> anyhow::Result<()> {
    for (index, table) in tables(lanes).iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write_table(table, out)?;
    }
    let [lane] = lanes else { return notes(lanes, out) };
    let missed = lane.report().keys().map_or(0, |keys| keys.busiest(0).1);
    if missed > 0 {
        writeln!(
            out,
            "(more than {MAX_BUSY_KEYS} keys: each count may be up to {missed} too low)"
        )?;
    }
    let others = lane.report().totals().others;
    if others > 0 {
        writeln!(out, "\nother events: {others} (only take and hold are requests)")?;
    }
    notes(lanes, out)
}

/// The number of requests of a log that lasted longer than a hold may.
pub(super) fn expired(lane: &Lane) -> String {
    match lane.report().totals().expired {
        1 => "1 request lasted longer than its hold, which expired".to_owned(),
        expired => format!("{expired} requests lasted longer than their holds, which expired"),
    }
}

/// Notes below the tables: requests that outlived their hold, and changes of the policy.
fn notes(lanes: &[Lane], out: &mut impl Write) -> anyhow::Result<()> {
    for lane in lanes.iter().filter(|lane| lane.report().totals().expired > 0) {
        writeln!(out, "\n{}: {}", lane.name(), expired(lane))?;
    }
    for lane in lanes.iter().filter(|lane| !lane.changes().is_empty()) {
        writeln!(out, "\n{}", lane.name())?;
        for change in lane.changes() {
            writeln!(out, "  after {}: {}", duration_text(change.after), change.policy)?;
        }
    }
    Ok(())
}
