//! What the server counts, as Prometheus reads it.
//!
//! Nothing is counted for this: each worker counts for itself anyway, and whoever asks adds it up.
//! Names and labels are documented in `docs/metrics.md` and stay. A key is never a label.

use std::{fmt, iter::once, sync::Arc};

use bytes::Bytes;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};
use sluicegate_redis::Source;

use crate::{
    face::Face,
    home::Home,
    ruleset::{Event, Named},
    shared::Shared,
    stats::{BOUNDS, Counter, Latency, Outcomes, Stats},
};

/// What [`text`] is.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SOURCES: [Source; 4] = [Source::Store, Source::Cache, Source::Lease, Source::Fallback];

/// Rules that are told of at a time.
const PAGE: usize = 16;

/// All that is counted, as text, in parts: those about rules are written as they are taken, so that
/// who asks costs the same however many there are.
pub(crate) fn told(shared: &Arc<Shared>) -> impl Iterator<Item = Bytes> + use<> {
    let mut registry = Registry::with_prefix("sluicegate");
    registry.register_collector(Box::new(Metrics(Arc::clone(shared))));
    let mut text = String::new();
    // A string takes all that is written to it.
    let _ = text::encode_registry(&mut text, &registry);
    let all = shared.rules.tallies.all();
    let count = all.len();
    let pages = move |family: &'static RuleFamily| {
        let all = Arc::clone(&all);
        let page = move |at: usize| page(family, &all[at..(at + PAGE).min(count)]);
        once(family.head()).chain((0..count).step_by(PAGE).map(page))
    };
    once(text)
        .chain(pages(&DECISIONS))
        .chain(pages(&NEAR_LIMIT))
        .chain(once("# EOF\n".to_owned()))
        .map(Bytes::from)
}

/// Counters of each rule.
struct RuleFamily {
    name: &'static str,
    help: &'static str,
    /// What is counted, and whether a label says which of them.
    events: &'static [Event],
    has_outcome: bool,
}

static DECISIONS: RuleFamily = RuleFamily {
    name: "sluicegate_rule_decisions",
    help: "What became of requests by the rules, by the name of the rule",
    events: &[
        Event::Allowed,
        Event::Denied,
        Event::Shadow,
        Event::Unlimited,
        Event::Blocked,
        Event::Fallback,
    ],
    has_outcome: true,
};

static NEAR_LIMIT: RuleFamily = RuleFamily {
    name: "sluicegate_rule_near_limit",
    help: "Of those that were allowed, the ones that left less than a fifth of the limit",
    events: &[Event::Near],
    has_outcome: false,
};

impl RuleFamily {
    fn head(&self) -> String {
        let Self { name, help, .. } = self;
        format!("# HELP {name} {help}\n# TYPE {name} counter\n")
    }

    /// Whether a count is told: all that each rule has, and of others those that are not 0.
    const fn is_told(event: Event, count: u64) -> bool {
        count > 0 || matches!(event, Event::Allowed | Event::Denied | Event::Near)
    }
}

/// What is counted of these rules.
fn page(family: &RuleFamily, rules: &[Named]) -> String {
    let mut text = String::new();
    for (rule, tally) in rules {
        for &event in family.events {
            let count = tally.count(event);
            if RuleFamily::is_told(event, count) {
                text.push_str(family.name);
                text.push_str("_total{rule=\"");
                escape(rule, &mut text);
                if family.has_outcome {
                    text.push_str("\",outcome=\"");
                    text.push_str(event.word());
                }
                text.push_str("\"} ");
                text.push_str(itoa::Buffer::new().format(count));
                text.push('\n');
            }
        }
    }
    text
}

/// The value of a label.
fn escape(value: &str, out: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[derive(Debug)]
struct Metrics(Arc<Shared>);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        let shared = &*self.0;
        decisions(shared, &mut out)?;
        requests(shared, &mut out)?;
        clients(shared, &mut out)?;
        state(shared, &mut out)?;
        rules(shared, &mut out)?;
        out.labelled("build", "The server's version", MetricType::Gauge, |family| {
            family.encode_family(&[("version", VERSION)])?.encode_gauge(&1_u64)
        })
    }
}

/// Where metrics go.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        self.labelled(name, help, MetricType::Counter, |metric| {
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
        })
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) -> fmt::Result {
        self.labelled(name, help, MetricType::Gauge, |metric| metric.encode_gauge(&(value as u64)))
    }

    /// A metric whose values `encode` writes.
    fn labelled(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        encode: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        encode(&mut self.0.encode_descriptor(name, help, None, kind)?)
    }
}

/// One count of a family.
fn count(family: &mut MetricEncoder<'_>, labels: &impl EncodeLabelSet, count: u64) -> fmt::Result {
    family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)
}

fn decisions(shared: &Shared, out: &mut Out<'_>) -> fmt::Result {
    let here = shared.home.memory().is_some();
    let help = "Decisions, by face, outcome and who made them";
    out.labelled("decisions", help, MetricType::Counter, |family| {
        for face in Face::ALL {
            // Where the state is in this process, nobody else decides.
            for source in SOURCES.into_iter().take(if here { 1 } else { SOURCES.len() }) {
                let word = if here { "memory" } else { source.word() };
                let of = |of: fn(&Outcomes) -> &Counter| {
                    shared.sum(|stats| of(stats.of(face, source)).count())
                };
                let outcomes = [("allowed", of(|it| &it.allowed)), ("denied", of(|it| &it.denied))];
                for (outcome, counted) in outcomes {
                    let labels = [("face", face.name()), ("outcome", outcome), ("source", word)];
                    count(family, &labels, counted)?;
                }
            }
        }
        Ok(())
    })
}

fn requests(shared: &Shared, out: &mut Out<'_>) -> fmt::Result {
    let sum = |count: fn(&Stats) -> &Counter| shared.sum(|stats| count(stats).count());
    let help = "Requests of HTTP, commands of RESP and calls of Envoy, whatever they ask";
    out.labelled("requests", help, MetricType::Counter, |family| {
        count(family, &[("face", "grpc")], sum(|stats| &stats.questions))?;
        count(family, &[("face", "http")], sum(|stats| &stats.requests))?;
        count(family, &[("face", "resp")], sum(|stats| &stats.commands))
    })?;
    let help = "Requests, commands and calls that were answered with an error";
    out.counter("request_errors", help, sum(|stats| &stats.errors))?;
    let help = "From the head of a request of HTTP, or the message of a call of Envoy, to its answer, \
                waiting included";
    out.labelled("request_seconds", help, MetricType::Histogram, |family| {
        latency(shared, family, Face::Grpc, |stats| &stats.question_latency)?;
        latency(shared, family, Face::Http, |stats| &stats.latency)
    })
}

/// How long requests of one face took.
fn latency(
    shared: &Shared,
    family: &mut MetricEncoder<'_>,
    face: Face,
    of: fn(&Stats) -> &Latency,
) -> fmt::Result {
    let mut buckets = [(0.0, 0); BOUNDS.len() + 1];
    let mut all = 0;
    for (index, bucket) in buckets.iter_mut().enumerate() {
        let bound = BOUNDS.get(index).map_or(f64::INFINITY, |micros| *micros as f64 / 1e6);
        let here = shared.sum(|stats| of(stats).count(index));
        *bucket = (bound, here);
        all += here;
    }
    let sum = shared.sum(|stats| of(stats).micros()) as f64 / 1e6;
    let labels = [("face", face.name())];
    let mut metric = family.encode_family(&labels)?;
    metric.encode_histogram::<NoLabelSet>(sum, all, &buckets, None)
}

fn clients(shared: &Shared, out: &mut Out<'_>) -> fmt::Result {
    let sum = |count: fn(&Stats) -> &Counter| shared.sum(|stats| count(stats).count());
    let accepting = &shared.accepting;
    out.gauge("clients", "Clients that are connected", shared.clients.len())?;
    out.gauge("waiting", "Requests that wait for their turn", shared.lines.waiting())?;
    out.counter("connections", "Clients that were served", sum(|stats| &stats.connections))?;
    let help = "Clients that were turned away or closed, by why";
    out.labelled("clients_closed", help, MetricType::Counter, |family| {
        count(family, &[("why", "full")], accepting.refused.count())?;
        count(family, &[("why", "idle")], sum(|stats| &stats.idle))?;
        count(family, &[("why", "slow")], sum(|stats| &stats.slow))?;
        count(family, &[("why", "tls")], sum(|stats| &stats.tls_failures))
    })?;
    let help = "Wrong passwords of clients of RESP";
    out.counter("login_failures", help, sum(|stats| &stats.login_failures))?;
    out.gauge("buffer_bytes", "Bytes buffered for clients", shared.buffers.used())?;
    out.gauge(
        "buffer_max_bytes",
        "Upper bound on bytes buffered for clients",
        shared.buffers.max(),
    )?;
    let help = "Requests and connections rejected because the buffer memory was used up";
    out.counter("buffer_rejections", help, shared.buffers.rejected())?;
    out.counter("accept_errors", "Clients that the system did not let in", accepting.errors.count())
}

fn rules(shared: &Shared, out: &mut Out<'_>) -> fmt::Result {
    let (version, told) = (shared.rules.now(), shared.rules.told());
    out.gauge("rules", "Rules that are in force", version.rules().rules().len())?;
    let number = usize::try_from(version.number()).unwrap_or(usize::MAX);
    out.gauge("rules_version", "Which version of the rules is in force", number)?;
    let help = "Whether the files of the rules could be used when they were looked at last";
    out.gauge("rules_ok", help, told.problem.is_none().into())?;
    let help = "How often the rules were read anew, and could be used or not";
    out.labelled("rules_reloads", help, MetricType::Counter, |family| {
        count(family, &[("outcome", "used")], told.reloads)?;
        count(family, &[("outcome", "failed")], told.failed)
    })
}

fn state(shared: &Shared, out: &mut Out<'_>) -> fmt::Result {
    match &shared.home {
        Home::Memory(store) => {
            let usage = store.usage();
            out.gauge("keys", "Keys that have state", store.len())?;
            out.gauge("state_bytes", "Memory that the state of keys takes up", usage.bytes)?;
            out.gauge("state_max_bytes", "Memory that it may take up", usage.max_bytes)?;
            let help = "Requests of new keys for which there was no room";
            out.counter("turned_away", help, usage.turned_away)?;
            let help = "Keys of the state file that did not fit into memory at the start";
            out.gauge("state_keys_dropped", help, usage.keys_dropped)?;
        }
        Home::Redis { store, .. } => {
            let servers = store.health();
            let connected = servers.iter().filter(|it| it.connected).count();
            let left_alone = servers.iter().filter(|it| it.left_alone).count();
            out.gauge("store_servers", "Servers of the store that are known", servers.len())?;
            out.gauge("store_connected", "Of those, connected ones", connected)?;
            let help = "Of those, ones that are not asked for now, since they did not answer (breaker open)";
            out.gauge("store_left_alone", help, left_alone)?;
            let help = "What was counted of the store: decisions by source, errors, reconnections";
            out.labelled("store_events", help, MetricType::Counter, |family| {
                store
                    .counters()
                    .iter()
                    .try_for_each(|(event, counted)| count(family, &[("event", event)], counted))
            })?;
        }
    }
    let told = shared.snapshots.told();
    let help = "State files that were written, or could not be";
    out.labelled("snapshots", help, MetricType::Counter, |family| {
        count(family, &[("outcome", "written")], told.written)?;
        count(family, &[("outcome", "failed")], told.failed)
    })
}
