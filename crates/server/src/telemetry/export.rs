//! Queues finished spans, and sends them to the collector: OTLP over HTTP, in protobuf.
//!
//! Each batch is sent once. If the collector is unavailable, its spans are dropped and counted, and one line per
//! outage is logged.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request,
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::{
    tonic::collector::trace::v1::ExportTraceServiceRequest,
    transform::{
        common::tonic::ResourceAttributesWithSchema,
        trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::{Span, SpanData, SpanProcessor},
};
use prost::Message as _;
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    sync::{
        mpsc::{Receiver, Sender, channel},
        oneshot,
    },
    task::JoinSet,
    time::timeout,
};

use super::endpoint::OtlpEndpoint;

/// Spans of one request to the collector.
const MAX_BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_millis(500);
/// Time limit of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a reply that are read: interim replies without end would keep the task busy.
const MAX_REPLY: u64 = 1 << 16;
/// Time limit of the last requests, when the server stops.
const FLUSH: Duration = Duration::from_secs(1);

/// Sends spans until it is [finished](ExportTask::finish) or dropped.
pub(crate) struct ExportTask {
    stop: oneshot::Sender<()>,
    task: JoinSet<()>,
}

impl ExportTask {
    pub(super) fn start(exporter: Exporter) -> Self {
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(exporter.run(stopped));
        Self { stop, task }
    }

    /// Sends the spans that are queued, within a second.
    pub(crate) async fn finish(mut self) {
        drop(self.stop);
        if timeout(FLUSH, self.task.join_next()).await.is_err() {
            tracing::warn!("the OpenTelemetry collector is too slow: dropped the last spans");
        }
    }
}

/// Sends finished spans to the collector.
#[derive(Debug)]
pub(super) struct Exporter {
    endpoint: OtlpEndpoint,
    resource: ResourceAttributesWithSchema,
    finished: Receiver<SpanData>,
    dropped: Arc<AtomicU64>,
    /// Whether the last batch could not be sent.
    is_failing: bool,
}

/// The description of this process.
pub(super) fn resource() -> Resource {
    let service = [
        KeyValue::new("service.name", "sluicegate"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let resource = Resource::builder_empty()
        .with_attributes(service)
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()) {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

impl Exporter {
    pub(super) fn new(
        endpoint: OtlpEndpoint,
        resource: &Resource,
        finished: Receiver<SpanData>,
        dropped: Arc<AtomicU64>,
    ) -> Self {
        Self { endpoint, resource: resource.into(), finished, dropped, is_failing: false }
    }

    /// Sends spans until `stop`, and then those that are queued.
    async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        loop {
            let mut batch = Vec::new();
            let stops = tokio::select! {
                () = gather(&mut self.finished, &mut batch) => false,
                _ = &mut stop => true,
            };
            if !batch.is_empty() {
                self.export(batch).await;
            }
            if stops {
                break;
            }
        }
        while let Ok(first) = self.finished.try_recv() {
            let mut batch = vec![first];
            while batch.len() < MAX_BATCH
                && let Ok(span) = self.finished.try_recv()
            {
                batch.push(span);
            }
            self.export(batch).await;
        }
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        let count = batch.len();
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let late = |_| Err(format!("no reply within {TIMEOUT:?}"));
        match timeout(TIMEOUT, self.send(body)).await.unwrap_or_else(late) {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(collector = %self.endpoint, "the OpenTelemetry collector is available again");
                }
            }
            Err(error) => {
                self.dropped.fetch_add(count as u64, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        collector = %self.endpoint,
                        error,
                        "the OpenTelemetry collector is unavailable: dropping spans"
                    );
                }
            }
        }
    }

    async fn send(&self, body: Vec<u8>) -> Result<(), String> {
        let OtlpEndpoint { host, port, path } = &self.endpoint;
        let stream = TcpStream::connect((host.as_str(), *port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let (read, write) = stream.into_split();
        let stream = tokio::io::join(read.take(MAX_REPLY), write);
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        let request = Request::post(path)
            .header(HOST, self.endpoint.authority())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        // The body of the reply is not read: the connection closes at the end of this function.
        let mut reply = pin!(sender.send_request(request));
        let reply = tokio::select! {
            biased;
            reply = &mut reply => reply,
            _ = connection => reply.await,
        };
        let status = reply.map_err(|error| error.to_string())?.status();
        if status.is_success() { Ok(()) } else { Err(format!("status {status}")) }
    }
}

/// Fills `batch` with up to [`MAX_BATCH`] spans, of [`GATHER`].
async fn gather(finished: &mut Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    finished.recv_many(batch, MAX_BATCH).await;
    let more = async {
        while batch.len() < MAX_BATCH {
            let most = MAX_BATCH - batch.len();
            finished.recv_many(batch, most).await;
        }
    };
    let _ = timeout(GATHER, more).await;
}

/// Spans that are kept until they are sent, about 1 KiB each, and as much for each denial. Further ones are dropped.
pub(super) const MAX_SPANS: usize = 4096;

/// Queues finished spans.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: Sender<SpanData>,
    dropped: Arc<AtomicU64>,
}

/// A queue that counts in `dropped` the spans for which it has no space, and its other end.
pub(super) fn span_queue(dropped: &Arc<AtomicU64>) -> (SpanQueue, Receiver<SpanData>) {
    let (spans, finished) = channel(MAX_SPANS);
    (SpanQueue { spans, dropped: Arc::clone(dropped) }, finished)
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The server sends what is queued when it stops.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use sluicegate_testing::eventually;
    use tracing::subscriber::with_default;
    use tracing_subscriber::{layer::SubscriberExt as _, registry};

    use super::{super::Telemetry, MAX_SPANS, TIMEOUT, timeout};

    /// Records `count` spans.
    fn record(telemetry: &Telemetry, count: usize) {
        let subscriber = registry().with(telemetry.layer());
        with_default(subscriber, || (0..count).for_each(|_| drop(telemetry.resp())));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn export_interim_replies_without_end_are_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let telemetry = Telemetry::new(url.parse().unwrap(), 1.0);
        record(&telemetry, 3);
        let collector = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            let replies = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
            (1..=4000).take_while(|_| stream.write_all(&replies).is_ok()).count() * replies.len()
        });
        let _task = telemetry.start().unwrap();
        let read = tokio::task::spawn_blocking(|| collector.join().unwrap()).await.unwrap();
        // The sockets have buffers of some megabytes.
        assert!(read < 32 << 20, "{read} bytes");
        eventually("the spans are dropped", || match telemetry.dropped() {
            3 => Ok(()),
            other => Err(other),
        });
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn export_hostile_reply_drops_the_spans_of_one_request() {
        let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'x'; 1 << 20]].concat();
        for (reply, dropped) in [
            (&b""[..], 3),
            (b"\0\xff\r\n\r\n", 3),
            (b"HTTP/1.1 503 Unavailable\r\n\r\n", 3),
            (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", 3),
            (&endless, 3),
            // The rest of a reply is not read.
            (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", 0),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let telemetry = Telemetry::new(url.parse().unwrap(), 1.0);
            record(&telemetry, 3);
            let reply = reply.to_vec();
            let collector = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                // The server may close before all is written.
                let _ = stream.write_all(&reply);
                if !reply.is_empty() {
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            });
            let task = telemetry.start().unwrap();
            assert!(telemetry.start().is_none());
            if dropped > 0 {
                eventually("the spans are dropped", || match telemetry.dropped() {
                    3 => Ok(()),
                    other => Err(other),
                });
            }
            collector.join().unwrap();
            task.finish().await;
            assert_eq!(telemetry.dropped(), dropped);
        }
    }

    #[tokio::test]
    async fn finish_silent_collector_ends_in_time() {
        // The system accepts the connection.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let telemetry = Telemetry::new(url.parse().unwrap(), 1.0);
        record(&telemetry, 3);
        let task = telemetry.start().unwrap();
        assert!(timeout(TIMEOUT, task.finish()).await.is_ok());
    }

    #[test]
    fn queue_full_drops_and_counts_spans() {
        let telemetry = Telemetry::new("http://127.0.0.1:9".parse().unwrap(), 1.0);
        record(&telemetry, MAX_SPANS);
        assert_eq!(telemetry.dropped(), 0);
        record(&telemetry, 7);
        assert_eq!(telemetry.dropped(), 7);
    }
}
