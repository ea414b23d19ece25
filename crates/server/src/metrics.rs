//! What the server counts, as Prometheus reads it.
//!
//! Nothing is counted for this: each worker counts for itself anyway, and whoever asks adds it up.
//! Names and labels are documented in `docs/metrics.md` and stay. A key is never a label.

use std::{fmt, sync::Arc};

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
    ruleset::Event,
    shared::Shared,
    stats::{BOUNDS, Counter, Latency, Outcomes, Stats},
};

/// What [`text`] is.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SOURCES: [Source; 4] = [Source::Store, Source::Cache, Source::Lease, Source::Fallback];

/// All that is counted, as text.
pub(crate) fn told(shared: &Arc<Shared>) -> String {
    let mut registry = Registry::with_prefix("sluicegate");
    registry.register_collector(Box::new(Metrics(Arc::clone(shared))));
    let mut text = String::new();
    // A string takes all that is written to it.
    let _ = text::encode(&mut text, &registry);
    text
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
    let help = "What became of requests by the rules, by the name of the rule";
    out.labelled("rule_decisions", help, MetricType::Counter, |family| {
        for (rule, tally) in shared.rules.tallies.all() {
            for event in Event::ALL.into_iter().filter(|event| *event != Event::Near) {
                let labels = [("rule", &*rule), ("outcome", event.word())];
                count(family, &labels, tally.count(event))?;
            }
        }
        Ok(())
    })?;
    let help = "Of those that were allowed, the ones that left less than a fifth of the limit";
    out.labelled("rule_near_limit", help, MetricType::Counter, |family| {
        for (rule, tally) in shared.rules.tallies.all() {
            count(family, &[("rule", &*rule)], tally.count(Event::Near))?;
        }
        Ok(())
    })?;
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
