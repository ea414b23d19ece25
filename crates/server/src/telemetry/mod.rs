//! Spans for OpenTelemetry: of requests, and of round trips to the store.
//!
//! A request is decided whether or not spans are recorded. The span of a request begins where its protocol reads it;
//! `sluicegate_redis` adds the round trips. [`Telemetry::layer`] turns these `tracing` spans into those of
//! OpenTelemetry, and `export` queues finished ones and sends them.
//!
//! Invariants:
//! - a request that is not sampled has no span, and neither have its round trips;
//! - a key, a password or the text of an error is in no span;
//! - no request waits for the collector: spans that do not fit into the queue are dropped and counted.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub use self::endpoint::OtlpEndpoint;
use self::export::Exporter;
pub(crate) use self::{
    export::ExportTask,
    spans::{SpanDecision, add_event, record_decision},
};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{Sampler as SdkSampler, SdkTracerProvider};
use parking_lot::Mutex;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::{
    Layer,
    filter::{FilterFn, LevelFilter, filter_fn},
    registry::LookupSpan,
};

mod endpoint;
mod export;
mod spans;

/// Denials of a span, which has an event of about 1 KiB for each; it counts further ones as dropped.
const MAX_DENIALS: u32 = 8;

/// Records spans of requests and of round trips to the store, and sends them to a collector by OTLP.
///
/// A request of HTTP or gRPC with a valid `traceparent` is recorded if its caller records it. Of all other requests,
/// a share is. Clones are the same. A server sends the spans while it [runs](crate::Server::run).
///
/// ```
/// use sluicegate_server::{Config, Telemetry};
/// use tracing_subscriber::layer::SubscriberExt as _;
///
/// let telemetry = Telemetry::new("http://127.0.0.1:4318".parse()?, 0.1);
/// // The program decides where spans and events go: here to the collector alone.
/// let subscriber = tracing_subscriber::registry().with(telemetry.layer());
/// let mut config = Config::default();
/// config.telemetry = Some(telemetry);
/// # let _ = subscriber;
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Telemetry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sampler: Sampler,
    provider: SdkTracerProvider,
    /// Spans that were not sent, because the queue was full or the collector unavailable.
    dropped: Arc<AtomicU64>,
    /// Until a server runs.
    exporter: Mutex<Option<Exporter>>,
}

impl Telemetry {
    /// Sends spans to `endpoint`. Of the requests whose caller does not say whether it records them, the share `ratio`
    /// (0 to 1) is recorded.
    ///
    /// The variables `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` describe this process.
    #[must_use]
    pub fn new(endpoint: OtlpEndpoint, ratio: f64) -> Self {
        let dropped = Arc::new(AtomicU64::new(0));
        let (queue, finished) = export::span_queue(&dropped);
        let resource = export::resource();
        let provider = SdkTracerProvider::builder()
            .with_sampler(SdkSampler::AlwaysOn)
            .with_resource(resource.clone())
            .with_max_events_per_span(MAX_DENIALS)
            .with_span_processor(queue)
            .build();
        let exporter = Exporter::new(endpoint, &resource, finished, Arc::clone(&dropped));
        let exporter = Mutex::new(Some(exporter));
        Self(Arc::new(Inner { sampler: Sampler::new(ratio), provider, dropped, exporter }))
    }

    /// The layer that records spans. It ignores events, and spans of other crates.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + Send + Sync + for<'span> LookupSpan<'span>,
    {
        let tracer = self.0.provider.tracer("sluicegate");
        let filter: FilterFn = filter_fn(Self::is_span as fn(&Metadata<'_>) -> bool)
            .with_max_level_hint(LevelFilter::TRACE);
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_context_activation(false)
            .with_level(false)
            .with_location(false)
            .with_target(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(filter)
    }

    /// Whether [`layer`](Self::layer) records it. Other layers, such as a log, should ignore it.
    #[must_use]
    pub fn is_span(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("sluicegate_")
    }

    /// Number of spans that were not sent.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Sends spans from now on, until the task is finished or dropped. `None`: another server does.
    pub(crate) fn start(&self) -> Option<ExportTask> {
        self.0.exporter.lock().take().map(ExportTask::start)
    }
}

/// Picks a share of requests at random.
#[derive(Debug)]
struct Sampler {
    /// A random number up to this picks a request. `None`: all are picked.
    threshold: Option<u64>,
}

impl Sampler {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a product below 2^64 that is not negative; the cast saturates"
    )]
    fn new(ratio: f64) -> Self {
        let threshold = (ratio.max(0.0) * u64::MAX as f64) as u64;
        Self { threshold: (ratio < 1.0).then_some(threshold) }
    }

    fn pick(&self) -> bool {
        // The keys of each `RandomState` differ, and the first ones of a thread are random. It needs no secrecy.
        let random = || RandomState::new().hash_one(0);
        self.threshold.is_none_or(|threshold| random() < threshold)
    }
}

#[cfg(test)]
mod sampler_tests {
    use super::*;

    #[test]
    fn sampler_picks_the_share() {
        let picked = |ratio| {
            let sampler = Sampler::new(ratio);
            (0..100_000).filter(|_| sampler.pick()).count()
        };
        assert_eq!((picked(0.0), picked(1.0), picked(-1.0), picked(2.0)), (0, 100_000, 0, 100_000));
        let tenth = picked(0.1);
        assert!((9_000..11_000).contains(&tenth), "{tenth}");
    }
}
