//! What may be said to `simulate`.

use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, bail};
use clap::{ArgMatches, Args, ValueEnum};
use sluicegate_core::{Limit, Policy};
use sluicegate_simulator::{KeySpec, KeyTemplate, LogFormat, TrafficSpec};

use crate::arguments::{Address, Password, SCHEME};

#[derive(Args, Debug)]
pub(crate) struct Simulate {
    /// The policy in force for every event that names none; several are compared
    #[arg(long = "policy", value_name = "POLICY")]
    pub(crate) policies: Vec<Policy>,
    /// Change the policy before it (or all, if none is before it) so long after the first event,
    /// as `30s=gcra:60/60s`
    #[arg(long = "change", value_name = "AFTER=POLICY")]
    pub(crate) changes: Vec<Change>,
    /// Which policy each change is about, by its index.
    #[arg(skip)]
    pub(crate) changed: Vec<Option<usize>>,
    /// Draw what happens: in the terminal, or to a file that ends in `.svg`
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1)]
    pub(crate) plot: Option<Option<PathBuf>>,
    /// Write a page with the tables and the picture, which needs nothing else
    #[arg(long, value_name = "FILE.html")]
    pub(crate) html: Option<PathBuf>,
    /// The key of which pictures show what is left; the one with the most requests if not given
    #[arg(long, value_name = "KEY")]
    pub(crate) key_plot: Option<OsString>,
    /// How far pictures reach from the first event, as `70s`; to the last event or departure if
    /// that is later, or this is not given
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) until: Option<Duration>,
    /// The title of pictures
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Who decides: `memory`, a server that runs with --test-clock, or a Redis or Valkey
    #[arg(long, value_name = "memory|resp://HOST:PORT|redis://HOST", default_value = "memory")]
    pub(crate) store: Store,
    #[command(flatten)]
    pub(crate) password: Password,
    /// `table` for people, `csv` with one row an event for programs
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    /// What the lines of an access log are: `combined`, `common`, `json`, or a format string of
    /// nginx or Apache; found out if not given
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log: Option<LogFormat>,
    /// The key of a line of a log, made of its fields, as `{ip}:{path}`
    #[arg(long, value_name = "TEMPLATE", default_value = "{ip}")]
    pub(crate) key: KeyTemplate,
    /// The field of a log that has the time
    #[arg(long, value_name = "NAME")]
    pub(crate) time_field: Option<String>,
    /// How far apart lines of a log may be to be put in order
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = span)]
    pub(crate) disorder: Duration,
    /// Traffic that is made up, several together: `poisson:50/s`, `even:5/s@10s..20s`,
    /// `burst:200@59s`
    #[arg(long, value_name = "TRAFFIC", conflicts_with = "trace")]
    pub(crate) traffic: Vec<TrafficSpec>,
    /// Keys of traffic that is made up: so many alike, or `zipf:100`
    #[arg(long, value_name = "KEYS", default_value = "1")]
    pub(crate) keys: KeySpec,
    /// How long made-up traffic goes on
    #[arg(long = "for", value_name = "SPAN", default_value = "1m", value_parser = span)]
    pub(crate) length: Duration,
    /// Another number makes other traffic, the same one the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// A file, `-` for standard input, plain or gzip: a trace, which is CSV in time order with the
    /// header `t_us,key,cost`, and optionally `policy` (in force for that event) and `op` (take,
    /// peek, charge, refund, reset); or an access log
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Csv,
}

/// The rule changes.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// How long after the first event.
    pub(crate) after: Duration,
    pub(crate) policy: Policy,
}

/// Where a picture goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plot {
    Terminal,
    File(PathBuf),
}

impl Simulate {
    /// Notes which policy stands before each change.
    pub(crate) fn note_order(&mut self, matches: &ArgMatches) {
        let places = |name| matches.indices_of(name).map_or_else(Vec::new, Iterator::collect);
        let policies: Vec<usize> = places("policies");
        let before = |change: &usize| policies.iter().filter(|at| *at < change).count();
        self.changed = places("changes").iter().map(|at| before(at).checked_sub(1)).collect();
    }

    /// The changes of the policy of that index, in order of time.
    pub(crate) fn changes_of(&self, index: usize) -> Vec<Change> {
        let changes = self.changes.iter().zip(&self.changed);
        let ours = changes.filter(|(_, of)| of.is_none_or(|of| of == index));
        let mut changes: Vec<Change> = ours.map(|(change, _)| change.clone()).collect();
        changes.sort_by_key(|change| change.after);
        changes
    }

    /// The trace, and where the picture goes. `--plot` takes the word behind it only if that is a
    /// file of a picture; else the word is the trace.
    pub(crate) fn files(&self) -> anyhow::Result<(Option<PathBuf>, Option<Plot>)> {
        match (&self.plot, &self.trace) {
            (None, trace) => Ok((trace.clone(), None)),
            (Some(None), trace) => Ok((trace.clone(), Some(Plot::Terminal))),
            (Some(Some(file)), trace) if file.extension().is_some_and(|it| it == "svg") => {
                Ok((trace.clone(), Some(Plot::File(file.clone()))))
            }
            (Some(Some(file)), None) => Ok((Some(file.clone()), Some(Plot::Terminal))),
            (Some(Some(file)), Some(_)) => {
                bail!("`--plot {}`: a file that ends in `.svg` would do", file.display())
            }
        }
    }
}

/// `AFTER=POLICY`.
impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').ok_or("`AFTER=POLICY` would do, as `30s=gcra:60/60s`")?;
        let after = span(parts.0).map_err(|error| error.to_string())?;
        let policy = parts.1.parse().map_err(|error| format!("policy `{}`: {error}", parts.1))?;
        Ok(Self { after, policy })
    }
}

/// A span of time, in the words of a policy's period.
pub(crate) fn span(text: &str) -> anyhow::Result<Duration> {
    let unit = text.trim_start_matches('0');
    let is_zero =
        unit.len() < text.len() && (unit.is_empty() || period(&format!("1{unit}")).is_some());
    if is_zero && !unit.starts_with(|it: char| it.is_ascii_digit()) {
        return Ok(Duration::ZERO);
    }
    period(text).with_context(|| {
        format!("span `{text}` is none of 0..=366d; `30s`, `250ms` or `2h` would do")
    })
}

/// The period of a policy.
fn period(text: &str) -> Option<Duration> {
    let policy: Policy = format!("sliding-log:1/{text}").parse().ok()?;
    match policy.limits() {
        [Limit::SlidingLog(log)] if !text.contains([':', ',']) => Some(log.period()),
        _ => None,
    }
}

/// Where decisions are made.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Memory,
    Resp(Address),
    /// A URL, as `sluicegate redis status` takes it.
    Redis(String),
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            _ if text.starts_with(SCHEME) => text.parse().map(Self::Resp),
            _ if text.starts_with("redis") && text.contains("://") => {
                Ok(Self::Redis(text.to_owned()))
            }
            _ => Err("`memory`, `resp://HOST:PORT` or `redis://HOST:PORT` would do".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_by_their_scheme() {
        assert!("http://h:1".parse::<Store>().is_err());
        assert!(matches!("redis+cluster://h:1".parse(), Ok(Store::Redis(_))));
    }

    #[test]
    fn spans_are_those_of_policies_and_zero() {
        for (text, micros) in [("0", 0), ("0s", 0), ("250ms", 250_000), ("s", 1_000_000), ("0m", 0)]
        {
            assert_eq!(span(text).unwrap(), Duration::from_micros(micros), "{text}");
        }
        for text in ["", "5", "1s:keep=2s", "1s,gcra:1/1s", "367d", "-1s", "0x", "0.5s"] {
            assert!(span(text).is_err(), "{text}");
        }
        assert!("gcra:1/1s".parse::<Change>().is_err());
        assert!("1s=gcra:0/1s".parse::<Change>().is_err());
    }
}
