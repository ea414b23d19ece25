//! `simulate`: traffic, run through policies in virtual time.

mod compare;
mod lane;
mod options;
mod picture;
mod progress;
mod redis;
mod remote;
mod source;
mod unzip;

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    path::Path,
    time::Duration,
};

use anyhow::{Context, ensure};
use sluicegate_core::{Decision, Timestamp};
use sluicegate_plot::Terminal;
use sluicegate_simulator::Event;

pub(crate) use self::options::Simulate;
use self::{
    lane::{Lane, Lanes},
    options::{Format, Plot, Store},
    redis::Redis,
    remote::Remote,
    source::{Input, Source},
};
use crate::client::Client;

/// Columns of a picture where nobody says how wide the terminal is.
const COLUMNS: usize = 100;

pub(crate) fn simulate(options: &Simulate) -> anyhow::Result<()> {
    let (trace, plot) = options.files()?;
    check(options, plot.as_ref())?;
    let mut input = Input::new(options, trace.as_deref())?;
    let draws = plot.is_some() || options.html.is_some();
    let key = if draws { input.key_to_follow(options)? } else { None };
    let mut source = input.open(options)?;
    let mut lanes = Lanes::new(options, draws.then_some(key.as_deref()));
    let result = decide(options, &mut source, &mut lanes);
    // What was decided before a line that is broken is still told, where rows are told one by one.
    lanes.finish_rows()?;
    result?;
    source.finish()?;
    lanes.finish(options.until);

    let mut out = io::stdout().lock();
    if options.format == Format::Table {
        compare::print(lanes.all(), &mut out)?;
    }
    if draws {
        let figure = picture::figure(options, &lanes, key.as_deref());
        match plot {
            Some(Plot::Terminal) => write!(out, "\n{}", terminal().draw(&figure))?,
            Some(Plot::File(path)) => write_file(&path, &sluicegate_plot::svg(&figure))?,
            None => {}
        }
        if let Some(path) = &options.html {
            write_file(path, &picture::page(figure, &lanes).html())?;
        }
    }
    Ok(())
}

/// What goes together and what does not.
fn check(options: &Simulate, plot: Option<&Plot>) -> anyhow::Result<()> {
    let several = options.policies.len() > 1;
    let csv = options.format == Format::Csv;
    ensure!(!(several && csv), "rows are about one policy; `--format table` compares several");
    ensure!(
        !(csv && plot == Some(&Plot::Terminal)),
        "rows and a picture do not go to the same place; `--plot FILE.svg` would do"
    );
    ensure!(
        options.traffic.is_empty() || !options.policies.is_empty(),
        "made-up traffic names no policy; `--policy gcra:30/60s` would do"
    );
    let in_memory = matches!(options.store, Store::Memory);
    ensure!(
        in_memory || (!several && options.changes.is_empty()),
        "several policies, and changes, are decided here: `--store memory` would do"
    );
    Ok(())
}

fn decide(options: &Simulate, source: &mut Source, lanes: &mut Lanes) -> anyhow::Result<()> {
    match &options.store {
        Store::Memory => loop {
            let batch = source.next_batch()?;
            if batch.is_empty() {
                return Ok(());
            }
            lanes.decide(batch)?;
        },
        Store::Resp(address) => {
            let client = Client::connect(address, &options.password)?;
            let mut remote = Remote::new(client, options.policies.first());
            let lane = lanes.only();
            each(source, |event| remote.ask(event, lane))?;
            remote.finish(lane)
        }
        Store::Redis(url) => {
            let mut redis = Redis::new(url, options.policies.first())?;
            let lane = lanes.only();
            each(source, |event| redis.ask(event, lane))
        }
    }
}

fn each(
    source: &mut Source,
    mut ask: impl FnMut(&Event<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    loop {
        let batch = source.next_batch()?;
        if batch.is_empty() {
            return Ok(());
        }
        batch.events().try_for_each(|event| ask(&event))?;
    }
}

/// What becomes of decisions.
trait Sink {
    fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()>;
}

impl Sink for Lane {
    fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()> {
        self.tell(event, decision)
    }
}

/// The terminal that a picture is drawn on.
fn terminal() -> Terminal {
    let is_terminal = io::stdout().is_terminal();
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    let columns = is_terminal.then(terminal_size::terminal_size).flatten();
    let columns = columns.map_or(COLUMNS, |(width, _)| usize::from(width.0));
    Terminal { columns, colour: is_terminal && !dumb && !set("NO_COLOR") }
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// `micros` after the first event.
fn after(first: Timestamp, span: Duration) -> Timestamp {
    first + span
}
