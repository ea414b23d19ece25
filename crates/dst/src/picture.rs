//! A run as a picture: time from left to right, a lane for the server and each process, and the units that keys
//! admitted against their bounds.

use std::fmt::{self, Write};

use crate::{
    outcome::RunOutcome,
    plan::{Action, FaultKind, Plan, Step},
    recording::{AdmittedByKey, MarkKind},
};

const WIDTH: u64 = 1080;
/// Where time begins, and how high lanes and charts are.
const LEFT: u64 = 120;
const RIGHT: u64 = 20;
const LANE: u64 = 44;
const CHART: u64 = 120;
/// Height of the text above a chart, and of the axis.
const TITLE: u64 = 34;
const AXIS: u64 = 30;

/// More keys than this are not drawn.
const MAX_KEYS: usize = 4;

/// The colours are those of the crate `plot`.
const STYLE: &str = "\
:root{--paper:#ffffff;--ink:#1f2328;--quiet:#59636e;--grid:#d8dee4;--allowed:#2f7dd1;--denied:#e8a33d;--fallback:#8250df;\
--fault:#cf222e;--process:#0a7f5f}
@media(prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--quiet:#9198a1;--grid:#30363d;--allowed:#4493f8;\
--denied:#d29922;--fallback:#ab7df8;--fault:#f85149;--process:#3fb98f}}
body{font:14px system-ui,sans-serif;margin:24px;background:var(--paper);color:var(--ink)}
svg{max-width:100%;height:auto}
text{font:12px system-ui,sans-serif;fill:var(--ink)}
.paper{fill:var(--paper)}
.small{fill:var(--quiet);font-size:11px}
.line{stroke:var(--grid)}
.fault{fill:var(--fault);fill-opacity:.3}
.process{fill:var(--process);fill-opacity:.3}
.allowed{fill:var(--allowed)}.denied{fill:var(--denied)}.fallback{fill:var(--fallback)}.error{fill:var(--ink)}
.level{fill:none;stroke:var(--allowed);stroke-width:1.5}
.bound{fill:none;stroke:var(--ink);stroke-dasharray:6 4}
.burst{stroke:var(--quiet);stroke-dasharray:2 3}";

/// The page.
pub(crate) fn page(plan: &Plan, outcome: &RunOutcome) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, plan, outcome);
    page
}

fn write_page(out: &mut String, plan: &Plan, outcome: &RunOutcome) -> fmt::Result {
    let title = format!("Seed {}", plan.seed);
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>")?;
    match &outcome.violation {
        Some(violation) => writeln!(out, "<p><b>Violation</b> {}</p>", escaped(violation))?,
        None => writeln!(out, "<p>{} events, without a violation.</p>", outcome.events)?,
    }
    write_svg(out, plan, outcome)?;
    writeln!(out, "<h2>Script</h2>\n<pre>{}</pre>", escaped(&plan.to_string()))
}

/// The picture alone.
pub(crate) fn svg(plan: &Plan, outcome: &RunOutcome) -> String {
    let mut out = String::new();
    let _ = write_svg(&mut out, plan, outcome);
    let paper = "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>";
    let style = format!("<style>{STYLE}</style>{paper}");
    out.replacen('>', &format!(">{style}"), 1)
}

fn write_svg(out: &mut String, plan: &Plan, outcome: &RunOutcome) -> fmt::Result {
    let mut keys: Vec<_> = outcome.recording.keys.iter().collect();
    // Those that come closest to their bounds.
    keys.sort_by_key(|key| (last_bound(key) * 100).saturating_sub(most(key)));
    keys.truncate(MAX_KEYS);
    let lanes = if plan.table.is_some() { 1 } else { plan.processes + 1 } as u64;
    let axis = LANE * lanes + 40;
    let height = axis + AXIS + (CHART + TITLE) * keys.len() as u64;
    let scale = Scale { millis: outcome.millis.max(1) };
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Seed {}\">",
        plan.seed
    )?;
    write_legend(out)?;
    for lane in 0..lanes {
        let y = top(lane);
        let name = match (plan.table, lane) {
            (Some(_), _) => "table".to_owned(),
            (None, 0) => "server".to_owned(),
            (None, process) => format!("process {}", process - 1),
        };
        let middle = y + LANE / 2;
        let end = WIDTH - RIGHT;
        writeln!(out, "<text x=\"10\" y=\"{}\">{name}</text>", middle + 4)?;
        writeln!(
            out,
            "<line class=\"line\" x1=\"{LEFT}\" y1=\"{middle}\" x2=\"{end}\" y2=\"{middle}\"/>"
        )?;
    }
    plan.steps.iter().try_for_each(|step| write_fault(out, plan, step, scale))?;
    for mark in &outcome.recording.marks {
        let lane = if plan.table.is_some() { 0 } else { mark.process as u64 + 1 };
        let (class, shift) = match mark.kind {
            MarkKind::Allowed => ("allowed", 6),
            MarkKind::Denied => ("denied", 14),
            MarkKind::Fallback => ("fallback", 22),
            MarkKind::Error => ("error", 30),
        };
        let (x, y) = (scale.x(mark.at), top(lane) + shift + 4);
        writeln!(out, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"2.2\"/>")?;
    }
    write_axis(out, axis, scale)?;
    for (index, key) in (0..).zip(keys) {
        write_chart(out, key, axis + AXIS + (CHART + TITLE) * index, scale)?;
    }
    writeln!(out, "</svg>")
}

/// Milliseconds to places.
#[derive(Clone, Copy)]
struct Scale {
    millis: u64,
}

impl Scale {
    fn x(self, at: u64) -> u64 {
        LEFT + at.min(self.millis) * (WIDTH - LEFT - RIGHT) / self.millis
    }
}

const fn top(lane: u64) -> u64 {
    34 + lane * LANE
}

fn last_bound(key: &AdmittedByKey) -> u64 {
    key.bounds.last().map_or(0, |it| it.1)
}

fn most(key: &AdmittedByKey) -> u64 {
    key.levels.iter().map(|it| it.1).max().unwrap_or_default()
}

fn write_legend(out: &mut String) -> fmt::Result {
    let marks = [
        ("allowed", "allowed"),
        ("denied", "denied"),
        ("fallback", "by a fallback"),
        ("error", "error"),
    ];
    for ((class, text), x) in marks.into_iter().zip((LEFT..).step_by(120)) {
        writeln!(out, "<circle class=\"{class}\" cx=\"{x}\" cy=\"14\" r=\"4\"/>")?;
        writeln!(out, "<text x=\"{}\" y=\"18\">{text}</text>", x + 10)?;
    }
    let faults = [("fault", "fault"), ("process", "policy changed, table saved")];
    for ((class, text), x) in faults.into_iter().zip((LEFT + 480..).step_by(90)) {
        writeln!(out, "<rect class=\"{class}\" x=\"{x}\" y=\"8\" width=\"14\" height=\"12\"/>")?;
        writeln!(out, "<text x=\"{}\" y=\"18\">{text}</text>", x + 20)?;
    }
    Ok(())
}

fn write_fault(out: &mut String, plan: &Plan, step: &Step, scale: Scale) -> fmt::Result {
    let (class, text, span) = match &step.action {
        Action::Request(_)
        | Action::All { .. }
        | Action::Wait { .. }
        | Action::Permit(_)
        | Action::Push { .. }
        | Action::Pipeline { .. }
        | Action::Describe { .. } => return Ok(()),
        Action::UsePolicy { .. } | Action::Reload(_) => ("process", step.to_string(), 0),
        Action::Flood { .. } | Action::Revisit { .. } => ("process", step.to_string(), 0),
        Action::Fault { kind: FaultKind::Save, .. } => ("process", step.to_string(), 0),
        Action::Fault { span, .. } | Action::NodeFault { span, .. } => {
            ("fault", step.to_string(), *span)
        }
    };
    let of_process = match step.action {
        Action::Fault { kind, .. } | Action::NodeFault { kind, .. } => kind.is_of_one_process(),
        _ => true,
    };
    let lane = if plan.table.is_none() && of_process { step.process as u64 + 1 } else { 0 };
    let (x, end) = (scale.x(step.at), scale.x(step.at + span));
    let width = (end - x).max(3);
    let (y, height) = (top(lane) + 3, LANE - 6);
    writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"><title>{}</title></rect>",
        escaped(&text)
    )
}

fn write_axis(out: &mut String, y: u64, scale: Scale) -> fmt::Result {
    let step = scale.millis.div_ceil(8).next_multiple_of(500);
    let mut at = 0;
    while at <= scale.millis {
        let x = scale.x(at);
        let (whole, tenth) = (at / 1000, at % 1000 / 100);
        writeln!(out, "<line class=\"line\" x1=\"{x}\" y1=\"34\" x2=\"{x}\" y2=\"{y}\"/>")?;
        writeln!(out, "<text class=\"small\" x=\"{x}\" y=\"{}\">{whole}.{tenth} s</text>", y + 14)?;
        at += step;
    }
    Ok(())
}

/// The units that a key admitted beyond its rate, its burst and its bound.
fn write_chart(out: &mut String, key: &AdmittedByKey, y: u64, scale: Scale) -> fmt::Result {
    let AdmittedByKey { name, policy, burst, bounds, levels } = key;
    let bound = last_bound(key);
    let highest = (bound * 100).max(most(key)).max(100);
    let place = |hundredths: u64| y + TITLE + CHART - 20 - hundredths * (CHART - 30) / highest;
    writeln!(
        out,
        "<text x=\"10\" y=\"{}\">{} under {}: units beyond the rate, in any interval</text>",
        y + 20,
        escaped(name),
        escaped(policy)
    )?;
    let end = WIDTH - RIGHT;
    write!(out, "<path class=\"bound\" d=\"M{LEFT} {}", place(burst * 100))?;
    for &(at, units) in bounds {
        write!(out, "H{}V{}", scale.x(at), place(units * 100))?;
    }
    writeln!(out, "H{end}\"/>")?;
    let line = place(burst * 100);
    if bound != *burst {
        writeln!(
            out,
            "<line class=\"burst\" x1=\"{LEFT}\" y1=\"{line}\" x2=\"{end}\" y2=\"{line}\"/>"
        )?;
    }
    let x = LEFT - 10;
    for (text, units) in [("bound", bound), ("burst", *burst)] {
        if text == "bound" || place(bound * 100) + 12 < line {
            writeln!(
                out,
                "<text class=\"small\" x=\"{x}\" y=\"{}\" text-anchor=\"end\">{text} {units}</text>",
                place(units * 100) + 4
            )?;
        }
    }
    write!(out, "<path class=\"level\" d=\"M{LEFT} {}", place(0))?;
    for &(at, level) in levels {
        write!(out, "L{} {}", scale.x(at), place(level))?;
    }
    writeln!(out, "\"/>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
