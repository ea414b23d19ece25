//! Tables of the results, with their bars.

use super::contenders::{
    BASELINE, Contender, OURS, OURS_SMALL, OURS_TEXT, PIPELINES, REDIS_CELL, THROTTLECRAB,
};
use crate::{
    load::Sample,
    report::{Bar, Peer, Table, median},
};

const NO_DELAY: &str = "\
throttlecrab-server stalls if a client sends several commands at a time: it writes reply by reply\n\
without TCP_NODELAY, so that replies wait about 40 ms for the client's delayed acknowledgement.\n\
With a patch for TCP_NODELAY it reached 148 and 143 thousand per second (pipeline 16 and 128).";

pub(super) fn print(contenders: &[Contender]) {
    for pipeline in PIPELINES {
        let heading = format!("pipeline {pipeline}");
        let mut table = Table::new(&[&heading, "requests/s", "server CPU/request", "server busy"]);
        for contender in contenders {
            let Some(figures) = Figures::of(contender, pipeline) else { continue };
            let (cpu, busy) = (figures.cpu, figures.busy);
            let cpu = cpu.map(|it| format!("{it:.3} us")).unwrap_or_default();
            let busy = busy.map(|it| format!("{:.0} %", it * 100.0)).unwrap_or_default();
            table.row(vec![contender.name.to_owned(), rate(figures.rate), cpu, busy]);
        }
        println!("{table}");
    }
    let mut table = Table::comparison();
    for (pipeline, over_cell, of_baseline, over_crab) in [
        (1, Bar::AtLeast(1.35), Bar::None, Bar::None),
        (16, Bar::AtLeast(6.0), Bar::AtLeast(0.7), Bar::AtLeast(50.0)),
        (128, Bar::AtLeast(15.0), Bar::AtLeast(0.45), Bar::AtLeast(30.0)),
    ] {
        let bars = [(REDIS_CELL, over_cell), (BASELINE, of_baseline), (THROTTLECRAB, over_crab)];
        for (peer, bar) in bars {
            compare_rates(contenders, pipeline, OURS, peer, bar, &mut table);
        }
        let bar = if pipeline == 1 { Bar::AtMost(1.15) } else { Bar::None };
        compare_cpu(contenders, pipeline, bar, &mut table);
    }
    for pipeline in [16, 128] {
        let bar = Bar::AtLeast(0.85);
        compare_rates(contenders, pipeline, OURS_TEXT, OURS_SMALL, bar, &mut table);
    }
    println!("{table}");
    println!("{NO_DELAY}");
}

/// Medians of one contender at one pipeline depth.
struct Figures {
    /// Requests per second.
    rate: f64,
    /// Microseconds of the server's processor time per request.
    cpu: Option<f64>,
    /// The share of the time in which the server was busy.
    busy: Option<f64>,
}

impl Figures {
    fn of(contender: &Contender, pipeline: usize) -> Option<Self> {
        let samples = contender.samples.iter().filter(|(depth, _)| *depth == pipeline);
        let samples: Vec<&Sample> = samples.map(|(_, sample)| sample).collect();
        if samples.is_empty() {
            return None;
        }
        let median_of = |figure: &dyn Fn(&Sample) -> Option<f64>| {
            let figures: Vec<_> = samples.iter().filter_map(|it| figure(it)).collect();
            (!figures.is_empty()).then(|| median(&figures))
        };
        Some(Self {
            rate: median_of(&|it| Some(it.requests / it.seconds))?,
            cpu: median_of(&|it| it.cpu.map(|cpu| cpu * 1e6 / it.requests)),
            busy: median_of(&|it| it.cpu.map(|cpu| cpu / it.seconds)),
        })
    }

    /// The figures of the contender with this name, if it took part.
    fn named(contenders: &[Contender], name: &str, pipeline: usize) -> Option<Self> {
        Self::of(contenders.iter().find(|it| it.name == name)?, pipeline)
    }
}

fn compare_rates(
    contenders: &[Contender],
    pipeline: usize,
    subject: &str,
    peer: &str,
    bar: Bar,
    table: &mut Table,
) {
    let subject_figures = Figures::named(contenders, subject, pipeline);
    let Some(ours) = subject_figures.map(|it| it.rate) else { return };
    let work = format!("requests/s, pipeline {pipeline}, {subject}");
    match Figures::named(contenders, peer, pipeline).map(|it| it.rate) {
        Some(theirs) => {
            table.compare(
                &work,
                rate(ours),
                Peer::new(peer, rate(theirs)),
                ours / theirs,
                "x",
                bar,
            );
        }
        None => table.row(vec![work, rate(ours), peer.to_owned(), "left out".to_owned()]),
    }
}

fn compare_cpu(contenders: &[Contender], pipeline: usize, bar: Bar, table: &mut Table) {
    let cpu = |name| Figures::named(contenders, name, pipeline).and_then(|it| it.cpu);
    let (Some(ours), Some(baseline)) = (cpu(OURS), cpu(BASELINE)) else { return };
    let work = format!("CPU per request, pipeline {pipeline}, {OURS}");
    let text = |figure: f64| format!("{figure:.3} us");
    table.compare(
        &work,
        text(ours),
        Peer::new(BASELINE, text(baseline)),
        ours / baseline,
        "x",
        bar,
    );
}

/// Requests per second, in thousands.
fn rate(rate: f64) -> String {
    format!("{:.1} k/s", rate / 1e3)
}
