//! The gateway: holds requests, tokens and streams in one call, and settles each when its usage is known.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Incoming};
use parking_lot::Mutex;
use sluicegate::{HoldOutcome, Limiter, Permit, PreparedPolicy};
use tokio::{
    io::DuplexStream,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::sleep,
};

use super::{
    Limits, Random, header,
    network::{self, Chunks, MAX_DELAY},
    process::Process,
    provider::{Provider, count_tokens},
};

/// Lifetime of a hold that is not renewed. Renewals come three times in it, so after a kill at least two thirds of it
/// are left: more than the network needs to close the connection to the provider.
const TTL: Duration = Duration::from_secs(3);
/// A gateway that waits for free units tries again after this time.
const PAUSE: Duration = Duration::from_millis(20);

/// One of the processes that share the limits of the provider.
pub(crate) struct Gateway {
    process: Arc<Process>,
    limiter: Limiter,
    requests: PreparedPolicy,
    tokens: PreparedPolicy,
    streams: PreparedPolicy,
    provider: Arc<Provider>,
    first_in_line: tokio::sync::Mutex<()>,
    tasks: Mutex<JoinSet<()>>,
    random: Random,
}

/// The permits of one request.
struct Permits {
    request: Permit,
    tokens: Permit,
    stream: Permit,
}

impl Gateway {
    pub(crate) fn new(
        limits: Limits,
        provider: &Arc<Provider>,
        store: &Limiter,
    ) -> Result<Arc<Self>, sluicegate::Error> {
        let process = Process::new(store);
        Ok(Arc::new(Self {
            limiter: Limiter::new(Arc::clone(&process)),
            process,
            requests: format!("sliding-log:{}/1m", limits.requests).parse()?,
            tokens: format!("sliding-log:{}/1m", limits.tokens).parse()?,
            streams: format!("concurrency:{}/30s", limits.streams).parse()?,
            provider: Arc::clone(provider),
            first_in_line: tokio::sync::Mutex::default(),
            tasks: Mutex::default(),
            random: Random::new(2),
        }))
    }

    /// A connection of a client to the gateway.
    pub(crate) fn connect(self: &Arc<Self>) -> DuplexStream {
        let (client, server) = network::connection(self.random.up_to(MAX_DELAY / 2));
        let gateway = Arc::clone(self);
        self.spawn(async move {
            network::serve(server, |request| Arc::clone(&gateway).answer(request)).await;
        });
        client
    }

    /// Kills the process: its tasks end where they are, and nothing that it does reaches the store.
    pub(crate) fn kill(&self) {
        self.process.kill();
        self.tasks.lock().abort_all();
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Chunks> {
        let (head, body) = request.into_parts();
        let Ok(prompt) = body.collect().await else {
            return Chunks::none(StatusCode::BAD_REQUEST);
        };
        let prompt = prompt.to_bytes();
        let most = most_tokens(&prompt) + header(&head.headers, "max-tokens");
        let Ok(permits) = self.admit(most).await else {
            return Chunks::none(StatusCode::SERVICE_UNAVAILABLE);
        };
        let (reply, replied) = oneshot::channel();
        let request = Request::from_parts(head, Full::new(prompt));
        // A task of its own: a client that disconnects does not cancel it.
        let gateway = Arc::clone(&self);
        self.spawn(async move { gateway.exchange(permits, request, reply).await });
        replied.await.unwrap_or_else(|_| Chunks::none(StatusCode::BAD_GATEWAY))
    }

    /// Waits until the request, its stream and `tokens` are held: all three or none. First come, first served.
    async fn admit(&self, tokens: u32) -> Result<Permits, sluicegate::Error> {
        let _first = self.first_in_line.lock().await;
        loop {
            let holds = [
                ("{llm}:requests", &self.requests, 1),
                ("{llm}:tokens", &self.tokens, tokens),
                ("{llm}:streams", &self.streams, 1),
            ];
            if let HoldOutcome::Allowed(permits) = self.limiter.hold_all(holds, TTL).await? {
                let mut permits = permits.into_iter().map(Permit::keep_alive);
                let mut next = || permits.next().expect("a permit of each key");
                return Ok(Permits { request: next(), tokens: next(), stream: next() });
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends a request to the provider, and its reply to the client.
    async fn exchange(
        &self,
        permits: Permits,
        request: Request<Full<Bytes>>,
        reply: oneshot::Sender<Response<Chunks>>,
    ) {
        let Permits { request: request_permit, tokens, stream } = permits;
        let Ok(response) = network::send(self.provider.connect(), request).await else {
            // The usage is unknown: dropped permits charge the units held, once the stream has ended.
            sleep(MAX_DELAY).await;
            return;
        };
        let status = response.status();
        let _ = if status.is_success() {
            // The provider has counted the request: its minute has begun.
            request_permit.settle(1).await
        } else {
            let _ = tokens.settle(0).await;
            let _ = request_permit.settle(0).await;
            let _ = reply.send(Chunks::none(status));
            return;
        };
        let (sender, body) = Chunks::channel();
        let _ = reply.send(Response::new(body));
        let prompt_tokens = header(response.headers(), "prompt-tokens");
        if let Some(answer_tokens) = forward(response.into_body(), &sender).await {
            let _ = tokens.settle(prompt_tokens + answer_tokens).await;
        } else {
            // The client has disconnected, and so has the gateway. Until the provider notices, the stream is open,
            // and makes tokens. The permits are dropped then: the tokens are charged as held.
            sleep(MAX_DELAY).await;
            drop(tokens);
        }
        drop(stream);
    }
}

/// The most tokens of a prompt: a token has at least four bytes here.
fn most_tokens(prompt: &[u8]) -> u32 {
    u32::try_from(prompt.len() / 4 + 1).expect("a short prompt")
}

/// Sends a body to the client while it arrives. Returns its tokens; `None` if it did not reach its end.
async fn forward(mut body: Incoming, client: &mpsc::Sender<Bytes>) -> Option<u32> {
    let mut tokens = 0;
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = client.closed() => return None,
        };
        let Some(frame) = frame else {
            return Some(tokens);
        };
        let Ok(chunk) = frame.ok()?.into_data() else {
            continue;
        };
        tokens += count_tokens(&chunk);
        client.send(chunk).await.ok()?;
    }
}
