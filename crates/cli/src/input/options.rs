//! The options that say what `simulate` and `recommend` read.

use std::{path::PathBuf, str::FromStr, time::Duration};

use anyhow::bail;
use clap::{ArgMatches, Args, parser::ValueSource};
use sluicegate_core::Policy;
use sluicegate_simulator::{KeySpec, KeyTemplate, LogFormat, TrafficSpec};

use crate::{
    output::report,
    table::duration_text,
    values::{self, positive_span, span},
};

/// Key of a log line without `--key`: the client.
pub(crate) const DEFAULT_KEY: &str = "{ip}";

/// Options that say what to read.
#[derive(Args, Debug)]
pub(crate) struct InputOptions {
    /// Options that were given and have an effect only together with others.
    #[arg(skip)]
    given: Vec<&'static str>,
    /// Format of an access log: `common`, `combined`, `vhost_combined`, `envoy`, `istio`, `alb`, `w3c`, `json`,
    /// `traefik`, or a format string of nginx or Apache [default: detected]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log: Option<Written<LogFormat>>,
    /// Key of a log line, made of fields in braces, such as `{ip}:{path}`
    #[arg(long, value_name = "TEMPLATE", default_value = DEFAULT_KEY)]
    pub(crate) key: KeyTemplate,
    /// Field of the log that holds the time [default: detected]
    #[arg(long, value_name = "NAME")]
    pub(crate) time_field: Option<String>,
    /// Sort log lines that are out of order by up to this much, or more if they are near each other in the file
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = span)]
    pub(crate) disorder: Duration,
    /// Synthetic traffic, such as `poisson:50/s`, `even:5/s@10s..20s` or `burst:200@59s`; repeat the
    /// option to combine several
    #[arg(long, value_name = "TRAFFIC")]
    pub(crate) traffic: Vec<Written<TrafficSpec>>,
    /// Number of keys of synthetic traffic, or `zipf:N` for a Zipf distribution
    #[arg(long, value_name = "KEYS", default_value = "1")]
    pub(crate) keys: KeySpec,
    /// Length of synthetic traffic
    #[arg(long = "for", value_name = "DURATION", default_value = "1m", value_parser = positive_span)]
    pub(crate) length: Duration,
    /// Random seed of synthetic traffic
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::seed)]
    pub(crate) seed: u64,
    /// Trace or access log, plain or gzip; `-` reads standard input. A trace is CSV in time order with
    /// the columns t_us, key and cost, and optionally policy, op (take, peek, charge, refund, reset, hold, settle,
    /// renew), and id and ttl_us of a hold
    #[arg(value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// How a command reads its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) options: &'a InputOptions,
    /// The command that reads, which errors name.
    pub(crate) command: &'static str,
    /// Whether an access log lacks the policy that the command needs.
    pub(crate) lacks_policy: bool,
    pub(crate) durations: Durations<'a>,
}

/// The durations of the requests of an access log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Durations<'a> {
    /// The field that is named for them.
    pub(crate) field: Option<&'a str>,
    /// A policy that needs them.
    pub(crate) policy: Option<&'a Policy>,
    /// The longest that counts.
    pub(crate) longest: Duration,
}

/// A value with its text.
#[derive(Clone, Debug)]
pub(crate) struct Written<T> {
    pub(crate) text: String,
    pub(crate) value: T,
}

impl<T: FromStr> FromStr for Written<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        Ok(Self { text: text.to_owned(), value: text.parse()? })
    }
}

impl InputOptions {
    /// Records which options were given.
    pub(crate) fn note_given(&mut self, matches: &ArgMatches) {
        const PARTIAL: [(&str, &str); 7] = [
            ("--log", "log"),
            ("--key", "key"),
            ("--time-field", "time_field"),
            ("--disorder", "disorder"),
            ("--keys", "keys"),
            ("--for", "length"),
            ("--seed", "seed"),
        ];
        self.given = given(&PARTIAL, matches);
    }

    /// Whether this option was given; it has an effect only together with others.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.contains(&name)
    }

    /// Rejects options of synthetic traffic without it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let synthetic = ["--keys", "--for", "--seed"].into_iter().find(|it| self.is_given(it));
        if let Some(unused) = synthetic.filter(|_| self.traffic.is_empty()) {
            bail!("missing --traffic: {unused} needs it");
        }
        Ok(())
    }

    /// Warns about synthetic traffic that has no requests, because it begins at the end or later.
    pub(crate) fn warn_of_late_traffic(&self) {
        let length = self.length;
        for Written { text, .. } in self.traffic.iter().filter(|it| it.value.start() >= length) {
            let length = duration_text(length);
            report(format_args!(
                "warning: --traffic `{text}` begins after the end (--for {length}): it has no requests"
            ));
        }
    }
}

/// The names of those options, of pairs of a name and an id, that the command line has.
pub(crate) fn given(options: &[(&'static str, &str)], matches: &ArgMatches) -> Vec<&'static str> {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    options.iter().filter(|(_, id)| is_given(id)).map(|(name, _)| *name).collect()
}
