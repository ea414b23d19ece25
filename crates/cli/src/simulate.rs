//! `simulate`: recorded traffic, run through a policy in virtual time.

mod redis;
mod remote;

use std::{
    fs::File,
    io::{self, Read, StdoutLock},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use sluicegate_core::{Decision, Policy};
use sluicegate_simulator::{Event, Report, Rows, Simulation, TraceReader, periods};

use self::{redis::Redis, remote::Remote};
use crate::{
    arguments::{Format, Simulate, Store},
    client::Client,
    table,
};

/// The windows that the table shows, besides the policy's own.
const SPANS: [u64; 5] = [1, 2, 3, 10, 60];

pub(crate) fn simulate(options: &Simulate) -> anyhow::Result<()> {
    let mut reader = TraceReader::new(open(&options.trace)?)?;
    let policy = options.policy.as_ref();
    match options.format {
        Format::Csv => {
            let mut out = Rows::new(io::stdout().lock());
            // What was decided before a line that is broken is still told.
            let result = decide(options, &mut reader, &mut out);
            drop(out.finish()?);
            result
        }
        Format::Table => {
            let mut out = Summary { report: None, policy: policy.cloned() };
            decide(options, &mut reader, &mut out)?;
            let (policy, report) = out.finish();
            table::print(policy.as_ref(), &report, &mut io::stdout().lock())
        }
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(file))
}

/// What becomes of decisions.
trait Sink {
    fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()>;
}

impl Sink for Rows<StdoutLock<'_>> {
    #[inline]
    fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()> {
        self.write(event.time, event.key, event.cost, decision)
    }
}

fn decide(
    options: &Simulate,
    reader: &mut TraceReader<impl Read>,
    sink: &mut impl Sink,
) -> anyhow::Result<()> {
    match &options.store {
        Store::Memory => {
            let mut simulation = Simulation::new(options.policy.clone());
            loop {
                let batch = reader.next_batch()?;
                if batch.is_empty() {
                    return Ok(());
                }
                simulation.decide_batch(batch, |event, decision| {
                    Ok::<_, anyhow::Error>(sink.add(event, decision)?)
                })?;
            }
        }
        Store::Resp(address) => {
            let client = Client::connect(address, &options.password)?;
            let mut remote = Remote::new(client, options.policy.as_ref());
            while let Some(event) = reader.next_event()? {
                remote.ask(&event, sink)?;
            }
            remote.finish(sink)
        }
        Store::Redis(url) => {
            let mut redis = Redis::new(url, options.policy.as_ref())?;
            while let Some(event) = reader.next_event()? {
                redis.ask(&event, sink)?;
            }
            Ok(())
        }
    }
}

/// A report, in windows that are known from the first event on.
struct Summary {
    report: Option<Report>,
    /// The policy given, or else the one that the first event names.
    policy: Option<Policy>,
}

impl Summary {
    fn start(policy: Option<&Policy>) -> Report {
        let mut spans = SPANS.map(Duration::from_secs).to_vec();
        spans.extend(policy.into_iter().flat_map(periods));
        Report::new(&spans)
    }

    fn finish(self) -> (Option<Policy>, Report) {
        let mut report = self.report.unwrap_or_else(|| Self::start(self.policy.as_ref()));
        report.finish();
        (self.policy, report)
    }
}

impl Sink for Summary {
    fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()> {
        let report = self.report.get_or_insert_with(|| {
            if self.policy.is_none() {
                self.policy = str::from_utf8(event.policy).ok().and_then(|text| text.parse().ok());
            }
            Self::start(self.policy.as_ref())
        });
        report.add(event, decision);
        Ok(())
    }
}
