//! Finished spans that are to be sent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanProcessor},
};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Spans that are kept until they are sent, about 1 KiB each, and as much for each denial. Further ones are dropped.
pub(super) const MAX_SPANS: usize = 4096;

/// Queues finished spans.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: Sender<SpanData>,
    dropped: Arc<AtomicU64>,
}

/// A queue that counts in `dropped` the spans for which it has no space, and its other end.
pub(super) fn new(dropped: &Arc<AtomicU64>) -> (SpanQueue, Receiver<SpanData>) {
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
