//! A provider of a language model that checks its limits by itself: it shares no code with Sluicegate.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Request, Response, StatusCode, body::Incoming, header::HeaderValue};
use parking_lot::Mutex;
use tokio::{
    io::DuplexStream,
    time::{Instant, timeout},
};

use super::{
    Limits, Random, header,
    network::{self, Chunks, MAX_DELAY},
};

const MINUTE: Duration = Duration::from_mins(1);
/// The provider makes one chunk in this time.
const CHUNK_TIME: Duration = Duration::from_millis(100);
const TOKENS_PER_CHUNK: u32 = 15;

/// The provider: `POST` with a prompt, and with the most tokens of the answer in the header `max-tokens`.
pub(crate) struct Provider {
    records: Mutex<Records>,
    random: Random,
}

/// The counters of the provider.
pub(crate) struct Records {
    pub(crate) requests: Window,
    pub(crate) tokens: Window,
    pub(crate) streams: Streams,
    /// Requests and streams that were above a limit.
    pub(crate) refused: u32,
}

impl Provider {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let records = Records {
            requests: Window::new(limits.requests),
            tokens: Window::new(limits.tokens),
            streams: Streams { limit: limits.streams, open: 0, peak: 0 },
            refused: 0,
        };
        Arc::new(Self { records: Mutex::new(records), random: Random::new(1) })
    }

    /// A connection to the provider.
    pub(crate) fn connect(self: &Arc<Self>) -> DuplexStream {
        let (client, server) = network::connection(self.random.up_to(MAX_DELAY / 2));
        let provider = Arc::clone(self);
        tokio::spawn(async move {
            network::serve(server, |request| Arc::clone(&provider).answer(request)).await;
        });
        client
    }

    /// Reads the counters.
    pub(crate) fn records<R>(&self, read: impl FnOnce(&Records) -> R) -> R {
        let mut records = self.records.lock();
        records.requests.advance(Instant::now());
        records.tokens.advance(Instant::now());
        read(&records)
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Chunks> {
        let max_tokens = header(request.headers(), "max-tokens");
        let Ok(prompt) = request.into_body().collect().await else {
            return Chunks::none(StatusCode::BAD_REQUEST);
        };
        let prompt_tokens = count_tokens(&prompt.to_bytes());
        if !self.records.lock().begin(prompt_tokens) {
            return Chunks::none(StatusCode::TOO_MANY_REQUESTS);
        }
        let (sender, body) = Chunks::channel();
        let stream = OpenStream(Arc::clone(&self));
        let mut left = max_tokens * self.random.between(60, 100) / 100;
        tokio::spawn(async move {
            while left > 0 {
                if timeout(CHUNK_TIME, sender.closed()).await.is_ok() {
                    return; // the client has disconnected
                }
                let tokens = left.min(TOKENS_PER_CHUNK);
                if !stream.0.records.lock().produce(tokens) {
                    return;
                }
                left -= tokens;
                let _ = sender.send(Bytes::from("word ".repeat(tokens as usize))).await;
            }
            // The stream is over before the client sees its end.
            drop(stream);
        });
        let mut response = Response::new(body);
        response.headers_mut().insert("prompt-tokens", HeaderValue::from(prompt_tokens));
        response
    }
}

/// Tokens of `text`. Here, each token ends with a space.
pub(crate) fn count_tokens(text: &[u8]) -> u32 {
    u32::try_from(text.iter().filter(|byte| **byte == b' ').count()).expect("a short text")
}

/// A stream, until it is dropped.
struct OpenStream(Arc<Provider>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.records.lock().streams.open -= 1;
    }
}

impl Records {
    /// Admits a request, or refuses it.
    fn begin(&mut self, prompt_tokens: u32) -> bool {
        let now = Instant::now();
        let fits = self.streams.open < self.streams.limit
            && self.requests.has_room(now, 1)
            && self.tokens.has_room(now, prompt_tokens);
        if fits {
            self.requests.add(now, 1);
            self.tokens.add(now, prompt_tokens);
            self.streams.open += 1;
            self.streams.peak = self.streams.peak.max(self.streams.open);
        } else {
            self.refused += 1;
        }
        fits
    }

    /// Counts tokens of an answer, or ends its stream.
    fn produce(&mut self, tokens: u32) -> bool {
        let now = Instant::now();
        let fits = self.tokens.has_room(now, tokens);
        if fits {
            self.tokens.add(now, tokens);
        } else {
            self.refused += 1;
        }
        fits
    }
}

/// Streams in progress.
pub(crate) struct Streams {
    pub(crate) limit: u32,
    pub(crate) open: u32,
    pub(crate) peak: u32,
}

/// Units of the last minute, at every moment.
pub(crate) struct Window {
    pub(crate) limit: u32,
    /// The most units of a minute.
    pub(crate) peak: u32,
    events: VecDeque<(Instant, u32)>,
    units: u32,
    start: Instant,
    /// The units of the last minute, added up over time: in units times seconds, from the second minute to `until`.
    sum: f64,
    until: Instant,
}

impl Window {
    fn new(limit: u32) -> Self {
        let now = Instant::now();
        Self { limit, peak: 0, events: VecDeque::new(), units: 0, start: now, sum: 0.0, until: now }
    }

    /// The part of the limit that was used, from the second minute on: 0 to 1.
    pub(crate) fn utilization(&self) -> f64 {
        let time = self.until.saturating_duration_since(self.start + MINUTE);
        self.sum / (f64::from(self.limit) * time.as_secs_f64())
    }

    fn has_room(&mut self, now: Instant, units: u32) -> bool {
        self.advance(now);
        self.units + units <= self.limit
    }

    fn add(&mut self, now: Instant, units: u32) {
        self.events.push_back((now, units));
        self.units += units;
        self.peak = self.peak.max(self.units);
    }

    fn advance(&mut self, now: Instant) {
        while let Some(&(time, units)) = self.events.front()
            && time + MINUTE <= now
        {
            self.pass(time + MINUTE);
            self.units -= units;
            self.events.pop_front();
        }
        self.pass(now);
    }

    fn pass(&mut self, now: Instant) {
        let from = self.until.max(self.start + MINUTE);
        self.sum += f64::from(self.units) * now.saturating_duration_since(from).as_secs_f64();
        self.until = now;
    }
}
