//! The options of `simulate`.

use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};

use clap::{ArgMatches, Args, ValueEnum};
use sluicegate_core::Policy;
use sluicegate_simulator::periods;

use crate::{
    connection::{Address, Password, SCHEME},
    drawing::Drawing,
    input::{Durations, InputOptions, Reading, given},
    values::{self, span},
};

#[derive(Args, Debug)]
pub(crate) struct Simulate {
    /// Policy of events that name none; repeat the option to compare several policies
    #[arg(long = "policy", value_name = "POLICY")]
    pub(crate) policies: Vec<Policy>,
    /// Change the preceding --policy (or all policies) this long after the first event, such as
    /// `30s=gcra:60/60s`
    #[arg(long = "change", value_name = "AFTER=POLICY")]
    pub(crate) changes: Vec<Change>,
    /// Options that were given and have an effect only together with others.
    #[arg(skip)]
    pub(crate) given: Vec<&'static str>,
    /// Index of the policy of each change.
    #[arg(skip)]
    pub(crate) changed: Vec<Option<usize>>,
    #[command(flatten)]
    pub(crate) drawing: Drawing,
    /// Write a self-contained page with the tables and the chart
    #[arg(long, value_name = "FILE.html")]
    pub(crate) html: Option<PathBuf>,
    /// Key whose remaining units the chart shows [default: the key with the most requests]
    #[arg(long, value_name = "KEY")]
    pub(crate) key_plot: Option<OsString>,
    /// Minimum length of the chart from the first event, such as `70s`
    #[arg(long, value_name = "DURATION", value_parser = span)]
    pub(crate) until: Option<Duration>,
    /// Title of the chart
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Show beside each policy what processes do that lease up to this many units of a key from the store; policies named
    /// in a trace that cannot be leased ask each time
    #[arg(long, value_name = "UNITS", value_parser = values::lease)]
    pub(crate) lease: Option<u32>,
    /// Number of processes that lease, over which requests are distributed by chance
    #[arg(long, value_name = "N", default_value = "8", value_parser = values::processes)]
    pub(crate) processes: usize,
    /// Store that decides: `memory`, a server with --test-clock, or a Redis or Valkey
    #[arg(long, value_name = "memory|resp://HOST:PORT|redis://HOST", default_value = "memory")]
    pub(crate) store: Store,
    #[command(flatten)]
    pub(crate) password: Password,
    /// Output: a summary, or one CSV row per event
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    /// Field of the log that holds the duration of a request, which a `concurrency` limit needs [default: detected].
    /// It is in seconds, or in the unit that its name ends with: `_ms`, `_us` or `_ns`. `NAME:ms` names another unit: s,
    /// ms, us or ns
    #[arg(long, value_name = "NAME[:UNIT]")]
    pub(crate) duration_field: Option<String>,
    #[command(flatten)]
    pub(crate) input: InputOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Csv,
}

/// A change of the policy.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The whole option.
    pub(crate) text: String,
    /// Time after the first event.
    pub(crate) after: Duration,
    pub(crate) policy: Policy,
}

impl Simulate {
    /// Whether this option was given; it has an effect only together with others.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.contains(&name)
    }

    /// Records which options were given, and which policy precedes each change.
    pub(crate) fn note_order(&mut self, matches: &ArgMatches) {
        const PARTIAL: [(&str, &str); 4] = [
            ("--key-plot", "key_plot"),
            ("--until", "until"),
            ("--title", "title"),
            ("--processes", "processes"),
        ];
        self.given = given(&PARTIAL, matches);
        self.input.note_given(matches);
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

    /// The first policy, or policy of a change, that counts the requests in flight.
    pub(crate) fn concurrency(&self) -> Option<&Policy> {
        self.all_policies().find(|policy| policy.counts_holds())
    }

    /// The policies, and those of the changes.
    pub(crate) fn all_policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().chain(self.changes.iter().map(|change| &change.policy))
    }

    /// How the traffic is read.
    pub(crate) fn reading(&self) -> Reading<'_> {
        // A line is written when its request ends, which began as long ago as a hold may last.
        let longest = self.all_policies().filter(|it| it.counts_holds()).flat_map(periods).max();
        let durations = Durations {
            field: self.duration_field.as_deref(),
            policy: self.concurrency(),
            longest: longest.unwrap_or_default(),
        };
        let lacks_policy = self.policies.is_empty();
        Reading { options: &self.input, command: "simulate", lacks_policy, durations }
    }
}

/// `AFTER=POLICY`.
impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected AFTER=POLICY, such as `30s=gcra:60/60s`";
        let whole = text.to_owned();
        let (after, policy) = text.split_once('=').ok_or(expected)?;
        let after = span(after).map_err(|error| format!("in `{after}`, {error}"))?;
        let policy = policy.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { text: whole, after, policy })
    }
}

/// The store that decides.
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
            _ => Err("expected memory, resp://HOST:PORT or redis://HOST:PORT".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_parse_is_by_scheme() {
        assert!("http://h:1".parse::<Store>().is_err());
        assert!(matches!("redis+cluster://h:1".parse(), Ok(Store::Redis(_))));
    }

    #[test]
    fn change_parse_expects_time_and_policy() {
        assert!("30s=gcra:1/1s".parse::<Change>().is_ok());
        for text in ["gcra:1/1s", "1s=gcra:0/1s", "5=gcra:1/1s", "x=gcra:1/1s"] {
            assert!(text.parse::<Change>().is_err(), "{text}");
        }
    }
}
