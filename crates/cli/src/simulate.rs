//! `simulate`: traffic replayed against policies in virtual time.

mod compare;
mod lane;
mod options;
mod picture;
mod progress;
mod redis;
mod remote;
mod source;
pub(crate) mod unzip;

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process,
};

use anyhow::{anyhow, bail, ensure};
use sluicegate_commands::plain_error;
use sluicegate_core::PreparedPolicy;
use sluicegate_plot::Terminal;
use sluicegate_simulator::{Event, TimeSeries};

pub(crate) use self::options::Simulate;
use self::{
    lane::{Lane, Lanes},
    options::{Change, Format, Plot, Store, Written},
    redis::Redis,
    remote::Remote,
    source::{Input, Source},
};
use crate::{
    client::Client,
    output::{output, report},
    table,
    values::closest,
};

/// Columns of a chart if the width of the terminal is unknown.
const COLUMNS: usize = 100;

pub(crate) fn simulate(options: &Simulate) -> anyhow::Result<()> {
    let (trace, plot) = options.files()?;
    check(options, plot.as_ref())?;
    let mut input = Input::new(options, trace.as_deref())?;
    warn_of_late_traffic(options);
    let draws = plot.is_some() || options.html.is_some();
    let key = if draws { input.key_to_follow(options)? } else { None };
    let mut source = input.open(options)?;
    let mut lanes = Lanes::new(options, draws.then_some(key.as_deref()))?;
    let result = decide(options, &mut source, &mut lanes);
    // Rows of the lines before a broken one are printed.
    lanes.finish_rows()?;
    result?;
    source.finish(options)?;
    lanes.finish(options.until);
    for Change { text, .. } in options.changes.iter().filter(|it| lanes.is_unused(&it.text)) {
        report(format_args!(
            "warning: --change `{text}` comes after the last event: it has no effect"
        ));
    }
    check_followed(options, &lanes)?;

    let mut out = output();
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

/// Rejects combinations of options that have no meaning.
fn check(options: &Simulate, plot: Option<&Plot>) -> anyhow::Result<()> {
    let several = options.policies.len() > 1;
    let csv = options.format == Format::Csv;
    ensure!(!(several && csv), "invalid --format `csv`: expected one --policy, not several");
    ensure!(
        !(csv && plot == Some(&Plot::Terminal)),
        "invalid --plot: expected a file such as `--plot chart.svg`, because --format csv prints rows"
    );
    ensure!(
        options.traffic.is_empty() || !options.policies.is_empty(),
        "missing --policy: expected one such as `--policy gcra:30/60s` for --traffic"
    );
    if let Some(policy) = options.concurrency().filter(|_| !options.traffic.is_empty()) {
        bail!(
            "invalid --policy `{policy}`: synthetic traffic has no durations; use a log or a trace"
        );
    }
    // Another file is most often the log, given by mistake. A pipe is none.
    let is_page =
        |file: &PathBuf| file.extension().is_some_and(|it| it.eq_ignore_ascii_case("html"));
    let is_pipe = |file: &PathBuf| file.exists() && !file.is_file();
    if let Some(file) = options.html.as_ref().filter(|file| !is_page(file) && !is_pipe(file)) {
        let file = file.display();
        bail!("invalid --html `{file}`: expected a file that ends in `.html`");
    }
    let in_memory = matches!(options.store, Store::Memory);
    ensure!(
        in_memory || (!several && options.changes.is_empty()),
        "invalid --store: expected `memory` with several policies, and with --change"
    );
    ensure!(
        in_memory || options.lease.is_none(),
        "invalid --store: expected `memory` with --lease, which plays the processes itself"
    );
    if options.is_given("--processes") && options.lease.is_none() {
        bail!("missing --lease: --processes needs it, such as `--lease 100`");
    }
    if let Some(units) = options.lease {
        for policy in options.all_policies() {
            PreparedPolicy::new(policy).lease(units).map_err(|error| anyhow!("{error}"))?;
        }
    }
    let unused = ["--key-plot", "--until", "--title"].into_iter().find(|it| options.is_given(it));
    if let Some(unused) = unused.filter(|_| plot.is_none() && options.html.is_none()) {
        bail!("missing --plot or --html: {unused} needs one of them");
    }
    let synthetic = ["--keys", "--for", "--seed"].into_iter().find(|it| options.is_given(it));
    if let Some(unused) = synthetic.filter(|_| options.traffic.is_empty()) {
        bail!("missing --traffic: {unused} needs it");
    }
    Ok(())
}

/// Warns about synthetic traffic that has no requests, because it begins at the end or later.
fn warn_of_late_traffic(options: &Simulate) {
    let length = options.length;
    for Written { text, .. } in options.traffic.iter().filter(|it| it.value.start() >= length) {
        let length = table::duration_text(length);
        report(format_args!(
            "warning: --traffic `{text}` begins after the end (--for {length}): it has no requests"
        ));
    }
}

/// Rejects a key for the chart that does not occur.
fn check_followed(options: &Simulate, lanes: &Lanes) -> anyhow::Result<()> {
    let Some(key) = &options.key_plot else { return Ok(()) };
    let (key, lane) = (key.to_string_lossy(), lanes.all().first());
    if lane.and_then(Lane::track).is_none_or(TimeSeries::has_followed) {
        return Ok(());
    }
    let busiest = lane.and_then(|lane| lane.report().keys()).map(|keys| keys.busiest(100).0);
    let names: Vec<_> = busiest.iter().flatten().map(|busy| table::key_cell(busy.key)).collect();
    let near = closest(&key, names.iter().map(String::as_str));
    match (near, names.first()) {
        (Some(near), _) => bail!("unknown --key-plot `{key}`: did you mean `{near}`?"),
        (None, Some(first)) => {
            bail!("unknown --key-plot `{key}`: expected a key of the traffic, such as `{first}`")
        }
        (None, None) => bail!("unknown --key-plot `{key}`: expected a key of the traffic"),
    }
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
            let mut client = Client::connect(address, &options.password)?;
            // Stores nothing, and fails if the server does not accept times.
            client.call(&[b"SG.PEEK", b"simulate", b"gcra:1/1s", b"AT", b"0"])?;
            let mut remote = Remote::new(client, options.policies.first());
            let lane = lanes.only();
            each(source, |event| remote.decide(event, lane))?;
            remote.finish(lane)
        }
        Store::Redis(url) => {
            let mut redis = Redis::new(url, options.policies.first())?;
            let lane = lanes.only();
            each(source, |event| redis.decide(event, lane))
        }
    }
}

fn each(
    source: &mut Source,
    mut decide: impl FnMut(&Event<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    loop {
        let batch = source.next_batch()?;
        if batch.is_empty() {
            return Ok(());
        }
        batch.events().try_for_each(|event| decide(&event))?;
    }
}

/// The terminal that a chart is drawn on.
fn terminal() -> Terminal {
    let is_terminal = io::stdout().is_terminal();
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    let columns = is_terminal.then(terminal_size::terminal_size).flatten();
    let columns = columns.map_or(COLUMNS, |(width, _)| usize::from(width.0));
    Terminal { columns, colour: is_terminal && !dumb && !set("NO_COLOR") }
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let why = |error| anyhow!("cannot write {}: {}", path.display(), plain_error(&error));
    // A link keeps pointing to the file.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if path.exists() && !path.is_file() {
        return fs::write(&path, text).map_err(why);
    }
    // Beside it first: a full disk must not leave a part of the file, nor remove the one before.
    let mut name = path.clone().into_os_string();
    name.push(format!(".tmp-{}", process::id()));
    let temporary = PathBuf::from(name);
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        why(error)
    })
}
