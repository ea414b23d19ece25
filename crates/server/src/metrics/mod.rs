//! `GET /metrics`: the counters of this server, as Prometheus reads them.
//!
//! Each worker counts for itself; a scrape adds the counters up. Names and labels are documented in
//! `docs/metrics.md`. A key is never a label.

mod exposition;
mod process;

use std::{array, iter::once, sync::Arc};

use bytes::Bytes;
use http_body_util::{Either, StreamBody};
use hyper::{
    Method, Response,
    body::Frame,
    header::{HeaderValue, VARY},
};
use sluicegate_core::{Source, StoreStatus};
use sluicegate_rules::RuleEvent;

use self::{
    exposition::{Exposition, Format, Kind},
    process::Process,
};
use crate::{
    budgets::buffers::BufferBudget,
    decide::Decider,
    denial_log::DenialCounts,
    net::{
        clients::Clients,
        web::{self, ConnectionBytes},
    },
    policies::rule_store::NamedCounters,
    protocols::http::{Access, BodyStream, Mount, MountedRequest, Problem, ReplyBody, text},
    stats::{BOUNDS, Counter, Outcomes, QuotaStats, ServerStats, Stats},
    store::snapshots::SnapshotLog,
    telemetry::Telemetry,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest first part, in bytes.
const MAX_FIRST: usize = 16 * 1024;
/// Length in bytes after which a part of the counters of rules ends, and the longest text of one rule.
const PAGE: usize = 4 * 1024;
const MAX_RULE: usize = 2560;
/// Maximum number of rules whose assigned rates are written.
const MAX_QUOTA_RULES: usize = 32;
/// Overhead of an unsent part, in bytes.
const FRAME: usize = 512;
/// Maximum number of parts at a time beyond the first, and their bytes: the unsent ones, the one that is being sent, and one
/// that was just written.
const MAX_PARTS: usize = web::MAX_PENDING / PAGE + 2;
const MAX_UNSENT: usize = web::MAX_PENDING + 2 * (PAGE + MAX_RULE) + MAX_PARTS * FRAME;

/// The state of the server that metrics are read from.
pub(crate) struct MetricSources {
    pub(crate) decider: Arc<Decider>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) buffers: Arc<BufferBudget>,
    pub(crate) stats: Arc<ServerStats>,
    pub(crate) snapshots: Arc<SnapshotLog>,
    pub(crate) quotas: Arc<QuotaStats>,
    pub(crate) telemetry: Option<Telemetry>,
}

/// The route of the metrics.
pub(crate) fn mount(sources: MetricSources) -> Mount {
    let sources = Arc::new(sources);
    Mount {
        path: "/metrics",
        method: Method::GET,
        access: Access::Clients,
        is_documented: true,
        handler: Box::new(move |call| Box::pin(answer(Arc::clone(&sources), call))),
    }
}

async fn answer(
    sources: Arc<MetricSources>,
    call: MountedRequest<'_>,
) -> Result<Response<ReplyBody>, Problem> {
    let format = Format::negotiate(&call.head.headers);
    let parts = Box::pin(render(&sources, format, call.body.bytes.reserve_nothing())).await;
    let parts = parts.ok_or_else(Problem::no_memory)?.map(|text| Ok(Frame::data(text)));
    let parts: BodyStream = Box::pin(futures_util::stream::iter(parts));
    let mut reply = text(format.media_type(), Bytes::new());
    reply.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(reply.map(|_| Either::Right(StreamBody::new(parts))))
}

/// All metrics as text, in parts: those of rules are written while the client reads, because there
/// may be many. `None`: there is no memory for the parts that may exist at a time, whose `bytes` are counted until they
/// are sent.
async fn render(
    shared: &Arc<MetricSources>,
    format: Format,
    mut bytes: ConnectionBytes,
) -> Option<impl Iterator<Item = Bytes> + use<>> {
    // Reserved before the work.
    if !bytes.resize(MAX_FIRST) {
        return None;
    }
    let process = Process::read().await;
    let mut out = Exposition::new(format);
    decisions(shared, &mut out);
    requests(shared, &mut out);
    clients(shared, &mut out);
    denial_log(shared, &mut out);
    state(shared, &mut out);
    rules(shared, &mut out);
    quotas(shared, &mut out);
    let dropped = shared.telemetry.as_ref().map_or(0, Telemetry::dropped);
    let help = "Trace spans that were not sent to the OpenTelemetry collector";
    out.counter("sluicegate_trace_spans_dropped", help, dropped);
    out.family("sluicegate_build", Kind::Info, "Version of the server")
        .sample(&[("version", VERSION)], 1);
    of_process(&process, &mut out);

    let mut parts =
        MetricParts { shared: Arc::clone(shared), out, families: &FAMILIES, last: None };
    let first = parts.next().unwrap_or_default();
    let is_whole = parts.families.is_empty();
    if !bytes.resize(first.capacity() + if is_whole { 0 } else { MAX_UNSENT }) {
        return None;
    }
    let bytes = Arc::new(bytes);
    Some(once(first).chain(parts).map(move |text| ConnectionBytes::bytes_of(&bytes, text)))
}

/// The remaining parts: few long ones, because each has an overhead.
struct MetricParts {
    shared: Arc<MetricSources>,
    /// The text of the next part.
    out: Exposition,
    /// The families of rules to write.
    families: &'static [RuleFamily],
    /// The last rule in the first of them. The next one is looked up by name, because a list that is kept for a
    /// client that does not read would be copied whenever a name is added.
    last: Option<Arc<str>>,
}

impl Iterator for MetricParts {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let most = self.out.size() + PAGE;
        while let [family, rest @ ..] = self.families {
            let all = self.shared.decider.rules.counters.all();
            if family.write(&mut self.out, &all, &mut self.last, most) {
                break;
            }
            (self.families, self.last) = (rest, None);
            if rest.is_empty() {
                self.out.end();
            }
        }
        let mut text = self.out.take_text();
        text.shrink_to_fit();
        (!text.is_empty()).then_some(text)
    }
}

/// Counters of each rule.
struct RuleFamily {
    name: &'static str,
    help: &'static str,
    events: &'static [RuleEvent],
    /// Whether a label names the event.
    has_outcome: bool,
}

static FAMILIES: [RuleFamily; 2] = [
    RuleFamily {
        name: "sluicegate_rule_decisions",
        help: "Requests by rule and outcome; fallback counts in addition to the outcome of the request",
        events: &[
            RuleEvent::Allowed,
            RuleEvent::Denied,
            RuleEvent::ShadowDenied,
            RuleEvent::Unlimited,
            RuleEvent::Blocked,
            RuleEvent::Fallback,
        ],
        has_outcome: true,
    },
    RuleFamily {
        name: "sluicegate_rule_near_limit",
        help: "Allowed requests that left less than a fifth of the limit, by rule",
        events: &[RuleEvent::NearLimit],
        has_outcome: false,
    },
];

impl RuleFamily {
    /// Writes the counters of the rules after `last`, up to about `most` bytes. Rules from a file have all
    /// counters; names that contain a value of a client have those of every name, and those above
    /// 0. Whether there may be more.
    fn write(
        &self,
        out: &mut Exposition,
        all: &[NamedCounters],
        last: &mut Option<Arc<str>>,
        most: usize,
    ) -> bool {
        let start = match &*last {
            Some(last) => all.partition_point(|(name, _)| name <= last),
            None => {
                out.family(self.name, Kind::Counter, self.help);
                0
            }
        };
        for (rule, counters) in &all[start..] {
            let mut family = out.resume(self.name, Kind::Counter);
            for &event in self.events {
                let count = counters.count(event);
                let always =
                    matches!(event, RuleEvent::Allowed | RuleEvent::Denied | RuleEvent::NearLimit);
                if always || count > 0 || counters.is_of_file() {
                    let labels = [("rule", &**rule), ("outcome", event.name())];
                    family.sample(&labels[..1 + usize::from(self.has_outcome)], count);
                }
            }
            if out.size() >= most {
                *last = Some(Arc::clone(rule));
                return true;
            }
        }
        false
    }
}

impl Exposition {
    fn counter(&mut self, name: &'static str, help: &str, count: u64) {
        self.family(name, Kind::Counter, help).sample(&[], count);
    }

    fn gauge(&mut self, name: &'static str, help: &str, value: usize) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }
}

fn decisions(shared: &MetricSources, out: &mut Exposition) {
    let in_memory = shared.decider.is_local();
    let help = "Decisions sent to clients, by protocol, outcome and source";
    let mut family = out.family("sluicegate_decisions", Kind::Counter, help);
    for protocol in shared.stats.protocols() {
        // State in memory has one source.
        for source in Source::ALL.into_iter().take(if in_memory { 1 } else { Source::ALL.len() }) {
            let word = if in_memory { "memory" } else { source.as_str() };
            let sum = |of: fn(&Outcomes) -> &Counter| {
                shared.stats.sum_of_protocol(protocol, |it| of(it.outcomes(source)).count())
            };
            let counts = [("allowed", sum(|it| &it.allowed)), ("denied", sum(|it| &it.denied))];
            for (outcome, count) in counts {
                let labels: [_; 3] =
                    [("protocol", protocol), ("outcome", outcome), ("source", word)];
                family.sample(&labels, count);
            }
        }
    }
}

fn requests(shared: &MetricSources, out: &mut Exposition) {
    let sum = |count: fn(&Stats) -> &Counter| shared.stats.sum(|stats| count(stats).count());
    let help = "HTTP requests, RESP commands and gRPC calls of the rate limit service";
    let mut family = out.family("sluicegate_requests", Kind::Counter, help);
    let mut protocols: Vec<_> = shared.stats.protocols().collect();
    protocols.sort_unstable();
    for protocol in &protocols {
        let requests = shared.stats.sum_of_protocol(protocol, |stats| stats.requests.count());
        family.sample(&[("protocol", *protocol)], requests);
    }
    let help = "Requests, commands and calls that were answered with an error";
    out.counter("sluicegate_request_errors", help, sum(|stats| &stats.errors));

    let help =
        "Seconds from reading a request to its reply being ready, waiting and the store included";
    let mut family = out.family("sluicegate_request_duration_seconds", Kind::Histogram, help);
    for protocol in protocols {
        let sum = |count: &dyn Fn(&Stats) -> u64| shared.stats.sum_of_protocol(protocol, count);
        let counts: [u64; BOUNDS.len() + 1] =
            array::from_fn(|index| sum(&|stats| stats.latency.counts[index].count()));
        let bounds = BOUNDS.iter().map(|&micros| Some(seconds(micros))).chain([None]);
        let total = seconds(sum(&|stats| stats.latency.micros.count()));
        family.histogram(&[("protocol", protocol)], bounds.zip(counts), total);
    }
}

/// Microseconds in seconds, the unit of Prometheus.
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn clients(shared: &MetricSources, out: &mut Exposition) {
    let sum = |count: fn(&Stats) -> &Counter| shared.stats.sum(|stats| count(stats).count());
    let accepting = &shared.stats.accepting;
    out.gauge("sluicegate_clients", "Clients connected now", shared.clients.len());
    let help = "Requests in the wait queues of their keys";
    out.gauge("sluicegate_waiting", help, shared.decider.queues.waiting());
    let help = "Client connections accepted and served";
    out.counter("sluicegate_connections", help, sum(|stats| &stats.connections));
    let help = "Client connections that the server rejected or closed, by reason";
    let mut family = out.family("sluicegate_connections_closed", Kind::Counter, help);
    family.sample(&[("reason", "full")], accepting.rejected.count());
    family.sample(&[("reason", "idle")], sum(|stats| &stats.idle));
    family.sample(&[("reason", "slow")], sum(|stats| &stats.slow));
    family.sample(&[("reason", "tls")], sum(|stats| &stats.tls_failures));
    let help = "Wrong passwords sent over RESP, and wrong tokens over HTTP";
    out.counter("sluicegate_login_failures", help, sum(|stats| &stats.login_failures));
    let help = "Bytes buffered for all clients";
    out.gauge("sluicegate_buffer_bytes", help, shared.buffers.used());
    let help = "Upper bound on the bytes buffered for all clients (--max-buffer-memory)";
    out.gauge("sluicegate_buffer_max_bytes", help, shared.buffers.max);
    let help = "Requests and connections rejected because the buffer memory was used up";
    out.counter("sluicegate_buffer_rejections", help, shared.buffers.rejected());
    let help = "Connections that the system failed to accept";
    out.counter("sluicegate_accept_errors", help, accepting.errors.count());
}

fn denial_log(shared: &MetricSources, out: &mut Exposition) {
    let log = shared.decider.denial_log.as_ref();
    let DenialCounts { recorded, dropped, lost } = log.map(|it| it.counts()).unwrap_or_default();
    let help = "Denials by their outcome in the denial log (--log-denials)";
    let mut family = out.family("sluicegate_logged_denials", Kind::Counter, help);
    family.sample(&[("outcome", "recorded")], recorded);
    family.sample(&[("outcome", "dropped")], dropped);
    family.sample(&[("outcome", "lost")], lost);
}

fn rules(shared: &MetricSources, out: &mut Exposition) {
    let (version, status) = (shared.decider.rules.current(), shared.decider.rules.status());
    out.gauge("sluicegate_rules", "Active rules", version.rules.rules().len());
    let number = usize::try_from(version.number).unwrap_or(usize::MAX);
    let help = "Version of the active rules: 1 after the start, plus 1 with each change";
    out.gauge("sluicegate_rules_version", help, number);
    let help =
        "1 if the rules files are valid as they stand, 0 if not: the previous rules stay active";
    out.gauge("sluicegate_rules_ok", help, status.problem.is_none().into());
    let help = "Reloads of changed rules files, by outcome";
    let mut family = out.family("sluicegate_rules_reloads", Kind::Counter, help);
    family.sample(&[("outcome", "applied")], status.reloads);
    family.sample(&[("outcome", "failed")], status.failed);
}

/// Counters of Envoy's quota service.
fn quotas(shared: &MetricSources, out: &mut Exposition) {
    let stats = &*shared.quotas;
    out.gauge(
        "sluicegate_quota_streams",
        "Envoys with a stream of the quota service",
        stats.streams.count(),
    );
    out.gauge(
        "sluicegate_quota_buckets",
        "Buckets of Envoys with a share of a limit",
        stats.buckets.count(),
    );
    let help = "Messages of Envoys to the quota service";
    out.counter("sluicegate_quota_messages", help, stats.messages.count());
    let help = "Usage reports of buckets in these messages";
    out.counter("sluicegate_quota_reports", help, stats.reports.count());
    let help = "Idle buckets that Envoys have to abandon";
    out.counter("sluicegate_quota_abandoned", help, stats.abandoned.count());
    let help = "Streams, buckets and shares that were not served, and operations that the store did not answer, by reason";
    let mut family = out.family("sluicegate_quota_rejections", Kind::Counter, help);
    for (reason, total) in [
        ("streams", &stats.rejected_streams),
        ("buckets", &stats.rejected_buckets),
        ("slots", &stats.rejected_shares),
        ("no_rule", &stats.without_rule),
        ("key", &stats.long_keys),
        ("invalid", &stats.invalid),
        ("store", &stats.failed_operations),
        ("late", &stats.late),
    ] {
        family.sample(&[("reason", reason)], total.count());
    }
    let rules = shared.decider.rules.current();
    let help = "Requests per second that Envoys may pass by their shares of a limit, by rule";
    let mut family = out.family("sluicegate_quota_assigned", Kind::Gauge, help);
    for rule in rules.rules.quotas().take(MAX_QUOTA_RULES) {
        let milli = shared.decider.rules.counters.of_rule(rule.name()).assigned();
        family.sample(&[("rule", rule.name())], milli as f64 / 1000.0);
    }
}

fn state(shared: &MetricSources, out: &mut Exposition) {
    match shared.decider.store_status() {
        StoreStatus::Local(usage) => {
            out.gauge("sluicegate_keys", "Keys with state in memory", usage.keys);
            out.gauge("sluicegate_state_bytes", "Memory used by the state of keys", usage.bytes);
            let help = "Upper bound on the memory used by the state of keys (--max-memory)";
            out.gauge("sluicegate_state_max_bytes", help, usage.max_bytes);
            let help = "Requests whose new key or change had no space in the table";
            out.counter("sluicegate_table_full", help, usage.table_full);
        }
        StoreStatus::Remote(status) => {
            let nodes = &status.nodes;
            let connected = nodes.iter().filter(|it| it.connected).count();
            let breaker_open = nodes.iter().filter(|it| it.breaker_open).count();
            out.gauge("sluicegate_store_servers", "Known nodes of the store", nodes.len());
            out.gauge("sluicegate_store_connected", "Store nodes with a connection", connected);
            let help = "Store nodes whose circuit breaker is open";
            out.gauge("sluicegate_store_breaker_open", help, breaker_open);
            let help = "Seconds from sending a command or pipeline to a store node to its reply";
            let mut family =
                out.family("sluicegate_store_request_duration_seconds", Kind::Histogram, help);
            let trips = status.round_trips;
            let buckets =
                trips.buckets().map(|(bound, count)| (bound.map(|it| it.as_secs_f64()), count));
            family.histogram(&[], buckets, trips.total.as_secs_f64());
            let help =
                "Events of the store client, by event: decisions by source, errors, connections";
            let mut family = out.family("sluicegate_store_events", Kind::Counter, help);
            for (event, count) in status.counters.iter() {
                family.sample(&[("event", event)], count);
            }
        }
    }
    let status = *shared.snapshots.lock();
    let help = "Snapshots of the state in memory to the state file, by outcome";
    let mut family = out.family("sluicegate_snapshots", Kind::Counter, help);
    family.sample(&[("outcome", "written")], status.written);
    family.sample(&[("outcome", "failed")], status.failed);
}

/// The standard metrics of a process, as far as the system provides them.
fn of_process(process: &Process, out: &mut Exposition) {
    let mut metric = |name, kind, help, value: Option<String>| {
        if let Some(value) = value {
            out.family(name, kind, help).sample(&[], value);
        }
    };
    let float = |value: Option<f64>| value.map(|value| format!("{value:.2}"));
    let whole = |value: Option<u64>| value.map(|value| value.to_string());
    let help = "Start time of the process, in seconds since the Unix epoch";
    metric("process_start_time_seconds", Kind::Gauge, help, float(process.start_time));
    let help = "CPU time used by the process, user and system, in seconds";
    metric("process_cpu_seconds", Kind::Counter, help, float(process.cpu_seconds));
    let help = "Resident memory of the process";
    metric("process_resident_memory_bytes", Kind::Gauge, help, whole(process.resident_bytes));
    let help = "Virtual memory of the process";
    metric("process_virtual_memory_bytes", Kind::Gauge, help, whole(process.virtual_bytes));
    let help = "Open file descriptors";
    metric("process_open_fds", Kind::Gauge, help, whole(process.open_descriptors));
    let help = "Upper bound on open file descriptors";
    metric("process_max_fds", Kind::Gauge, help, whole(process.max_descriptors));
}
