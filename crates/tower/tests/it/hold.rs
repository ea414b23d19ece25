//! Requests in flight: how long their units are held, and the units of their settle.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use sluicegate::{LocalLimiter, PreparedPolicy};
use sluicegate_core::{Operation, Policy};
use sluicegate_testing::eventually;
use sluicegate_tower::{HeldBody, HoldLayer, HoldService, RateLimitLayer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{JoinHandle, yield_now},
};
use tower::{Layer, Service, ServiceExt};

use crate::{layer::policy, store::Virtual};

/// The one key of a layer without parts.
pub(crate) const KEY: &[u8] = b"7:default,";
const TOKENS_USED: HeaderName = HeaderName::from_static("x-tokens-used");

/// Lets tokio's paused time pass.
pub(crate) async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// A body whose frames a test sends.
#[derive(Debug)]
pub(crate) enum TestBody {
    Text(Option<String>),
    Stream(UnboundedReceiver<Result<Frame<Bytes>, &'static str>>),
}

pub(crate) type Frames = UnboundedSender<Result<Frame<Bytes>, &'static str>>;

impl From<String> for TestBody {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into())))),
            Self::Stream(frames) => frames.poll_recv(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Text(None))
    }
}

/// The behaviour of the service.
#[derive(Debug)]
pub(crate) enum Action {
    Respond(Response<TestBody>),
    Fail,
    Panic,
}

/// A service whose responses a test sends.
#[derive(Clone)]
pub(crate) struct Inner(Arc<tokio::sync::Mutex<UnboundedReceiver<Action>>>);

impl Service<Request<()>> for Inner {
    type Response = Response<TestBody>;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<Response<TestBody>, &'static str>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let actions = Arc::clone(&self.0);
        Box::pin(async move {
            match actions.lock().await.recv().await.expect("the test has an action") {
                Action::Respond(response) => Ok(response),
                Action::Fail => Err("the service failed"),
                Action::Panic => panic!("the service panics"),
            }
        })
    }
}

pub(crate) type Held = HeldBody<TestBody, Arc<Virtual>>;

/// A service behind a layer, its store, and the actions of the service.
pub(crate) struct Setup {
    pub(crate) service: HoldService<Inner, Arc<Virtual>>,
    pub(crate) store: Arc<Virtual>,
    pub(crate) actions: UnboundedSender<Action>,
    policy: Policy,
}

impl Setup {
    pub(crate) fn new(
        at_once: bool,
        text: &str,
        set: impl FnOnce(RateLimitLayer<Arc<Virtual>>) -> HoldLayer<Arc<Virtual>>,
    ) -> Self {
        let (store, policy) = (Arc::new(Virtual::new(at_once)), policy(text));
        let layer = set(RateLimitLayer::new(Arc::clone(&store), policy.clone()));
        let (actions, inner) = unbounded_channel();
        let service = layer.layer(Inner(Arc::new(tokio::sync::Mutex::new(inner))));
        Self { service, store, actions, policy }
    }

    /// Starts a request, and lets it arrive at the service.
    pub(crate) async fn start(&self) -> JoinHandle<Result<Response<Held>, &'static str>> {
        let request = tokio::spawn(self.service.clone().oneshot(Request::new(())));
        settle().await;
        request
    }

    /// Starts a request, and answers it with `response`.
    async fn respond(&self, response: Response<TestBody>) -> Response<Held> {
        let request = self.start().await;
        self.actions.send(Action::Respond(response)).unwrap();
        request.await.unwrap().unwrap()
    }

    /// Starts a request that is answered with a stream.
    pub(crate) async fn stream(&self) -> (Frames, Response<Held>) {
        let (frames, stream) = unbounded_channel();
        (frames, self.respond(Response::new(TestBody::Stream(stream))).await)
    }

    /// Remaining units.
    pub(crate) async fn remaining(&self) -> u32 {
        settle().await;
        self.store.decide(KEY, &self.policy, Operation::Peek(0)).unwrap().remaining
    }

    /// Whether one more request is denied.
    async fn denies(&self) -> bool {
        let request = self.start().await;
        if request.is_finished() {
            return request.await.unwrap().unwrap().status() == 429;
        }
        request.abort();
        settle().await;
        false
    }
}

/// Lets all tasks come as far as they come without time.
pub(crate) async fn settle() {
    for _ in 0..50 {
        yield_now().await;
    }
}

fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

#[tokio::test(start_paused = true)]
async fn hold_lasts_until_the_body_has_ended() {
    for at_once in [true, false] {
        let setup = Setup::new(at_once, "concurrency:2/30s", RateLimitLayer::hold);
        let (frames, response) = setup.stream().await;
        assert_eq!(response.headers()["ratelimit"], r#""default";r=1"#);
        let request = setup.start().await;
        assert!(setup.denies().await);
        frames.send(data("a")).unwrap();
        let mut body = response.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        assert!(setup.denies().await, "the body has not ended");
        drop(frames);
        assert!(body.frame().await.is_none());
        assert_eq!(setup.remaining().await, 1);
        drop(body);
        assert_eq!(setup.remaining().await, 1, "it is settled once");
        request.abort();
        assert_eq!(setup.remaining().await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_text_body_ends_with_its_last_frame() {
    for at_once in [true, false] {
        let setup = Setup::new(at_once, "concurrency:2/30s", RateLimitLayer::hold);
        let text = || Response::new(TestBody::from("hello".to_owned()));
        let mut body = setup.respond(text()).await.into_body();
        assert_eq!(setup.remaining().await, 1);
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(setup.remaining().await, 2);
        // A body without frames holds nothing.
        let empty = setup.respond(Response::new(TestBody::Text(None))).await;
        assert_eq!(setup.remaining().await, 2);
        drop((body, empty));
    }
}

#[tokio::test(start_paused = true)]
async fn hold_dropped_failed_or_cancelled_is_settled() {
    for at_once in [true, false] {
        let setup = Setup::new(at_once, "concurrency:1/1h", RateLimitLayer::hold);
        // The client has disconnected: before the response, and halfway through the body.
        let request = setup.start().await;
        assert_eq!(setup.remaining().await, 0);
        request.abort();
        assert_eq!(setup.remaining().await, 1);
        let (frames, response) = setup.stream().await;
        frames.send(data("a")).unwrap();
        let mut body = response.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(setup.remaining().await, 0);
        drop(body);
        assert_eq!(setup.remaining().await, 1);
        // The body fails.
        let (frames, response) = setup.stream().await;
        frames.send(Err("it breaks")).unwrap();
        let mut body = response.into_body();
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(setup.remaining().await, 1);
        // The service fails, or panics.
        for action in [Action::Fail, Action::Panic] {
            let request = setup.start().await;
            assert_eq!(setup.remaining().await, 0);
            setup.actions.send(action).unwrap();
            assert!(!matches!(request.await, Ok(Ok(_))));
            assert_eq!(setup.remaining().await, 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hold_used_from_header_or_trailer_is_charged() {
    for at_once in [true, false] {
        let text = "concurrency:100/30s,fixed-window:100/1h";
        let setup = |text: &str| {
            Setup::new(at_once, text, |layer| layer.cost(40).hold().used_from(TOKENS_USED))
        };
        for (header, trailer, used) in [
            (None, None, 40),
            (Some("25"), None, 25),
            (Some("0"), None, 0),
            (None, Some("60"), 60),
            (Some("25"), Some("30"), 30),
            (Some("-1"), Some("many"), 40),
        ] {
            let setup = setup(text);
            let (frames, stream) = unbounded_channel();
            let mut response = Response::new(TestBody::Stream(stream));
            if let Some(value) = header {
                response.headers_mut().insert(TOKENS_USED, value.parse().unwrap());
            }
            let response = setup.respond(response).await;
            assert_eq!(setup.remaining().await, 60, "40 are held");
            frames.send(data("a")).unwrap();
            if let Some(value) = trailer {
                let mut trailers = HeaderMap::new();
                trailers.insert(TOKENS_USED, value.parse().unwrap());
                frames.send(Ok(Frame::trailers(trailers))).unwrap();
            }
            drop(frames);
            response.into_body().collect().await.unwrap();
            assert_eq!(setup.remaining().await, 100 - used, "{header:?} {trailer:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hold_long_stream_is_renewed_until_it_is_dropped() {
    for at_once in [true, false] {
        let hold = |layer: RateLimitLayer<_>| layer.hold().ttl(Duration::from_secs(3));
        let setup = Setup::new(at_once, "concurrency:2/30s", hold);
        let (frames, response) = setup.stream().await;
        frames.send(data("a")).unwrap();
        let mut body = response.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        // The body is not read, as with a slow client, and the service takes long.
        let request = setup.start().await;
        for _ in 0..20 {
            pass(Duration::from_secs(1)).await;
            assert_eq!(setup.remaining().await, 0);
        }
        drop(body);
        assert_eq!(setup.remaining().await, 1);
        request.abort();
        assert_eq!(setup.remaining().await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_denied_by_a_rate_is_denied_after_the_end() {
    for at_once in [true, false] {
        let setup =
            Setup::new(at_once, "concurrency:5/30s,fixed-window:2/1h", RateLimitLayer::hold);
        for _ in 0..2 {
            let text = Response::new(TestBody::from("hello".to_owned()));
            setup.respond(text).await.into_body().collect().await.unwrap();
        }
        assert!(setup.denies().await);
        assert_eq!(setup.remaining().await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_store_unavailable_rejects_or_passes() {
    for at_once in [true, false] {
        let setup = Setup::new(at_once, "concurrency:1/1h", RateLimitLayer::hold);
        setup.store.set_away(true);
        let rejected = setup.service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!(rejected.status(), 503);
        let allow = |layer: RateLimitLayer<_>| layer.allow_on_error(true).hold();
        let setup = Setup::new(at_once, "concurrency:1/1h", allow);
        setup.store.set_away(true);
        let (_frames, response) = setup.stream().await;
        assert_eq!(response.status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_invalid_in_shadow_is_not_renewed() {
    let (actions, inner) = unbounded_channel();
    let layer = RateLimitLayer::new(LocalLimiter::new(), policy("leaky-queue:5/1s")).shadow(true);
    let service = layer.hold().layer(Inner(Arc::new(tokio::sync::Mutex::new(inner))));
    let mut request = Box::pin(service.oneshot(Request::new(())));
    assert!(
        std::future::poll_fn(|context| Poll::Ready(request.as_mut().poll(context).is_pending()))
            .await
    );
    settle().await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "a task renews nothing");
    actions.send(Action::Respond(Response::new(TestBody::Text(None)))).unwrap();
    assert_eq!(request.await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn hold_settle_unavailable_is_repeated() {
    let setup = Setup::new(false, "concurrency:1/1h", RateLimitLayer::hold);
    let (_frames, response) = setup.stream().await;
    setup.store.set_away(true);
    drop(response);
    pass(Duration::from_secs(10)).await;
    setup.store.set_away(false);
    assert_eq!(setup.remaining().await, 0);
    pass(Duration::from_secs(10)).await;
    assert_eq!(setup.remaining().await, 1);
}

/// A real server and client: the client closes its connection halfway through an endless body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_client_disconnects_is_settled() {
    let (limiter, one) = (LocalLimiter::new(), policy("concurrency:1/1h"));
    let layer = RateLimitLayer::new(limiter.clone(), one.clone()).hold();
    let endless = async || {
        let (frames, stream) = unbounded_channel();
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(Duration::from_millis(1));
            while frames.send(data("line\n")).is_ok() {
                interval.tick().await;
            }
        });
        axum::response::Response::new(axum::body::Body::new(TestBody::Stream(stream)))
    };
    let app = axum::Router::new().route("/", axum::routing::get(endless)).layer(layer);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let get = async || {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        client.read_exact(&mut head).await.unwrap();
        (client, String::from_utf8(head.to_vec()).unwrap())
    };
    let prepared = PreparedPolicy::from(one);
    let remaining = || limiter.peek(KEY, &prepared, 0).remaining;
    for _ in 0..3 {
        let (client, status) = get().await;
        assert_eq!((status.as_str(), remaining()), ("HTTP/1.1 200", 0));
        assert_eq!(get().await.1, "HTTP/1.1 429");
        drop(client);
        eventually("the hold is settled", || (remaining() == 1).then_some(()).ok_or("it is held"));
    }
    server.abort();
}
