//! Connections that speak HTTP/1.1 or HTTP/2, for the protocols HTTP and gRPC.
//!
//! [`serve`] does the handshake, applies the limits of both versions and the time limits for slow
//! clients, and stops gracefully. hyper decodes and encodes; the protocol answers requests.
//!
//! Invariants:
//! - a client that does not complete a request is closed, whatever bytes it sends, and
//!   so is one that does not read its replies ([`activity`]);
//! - the memory of a connection is bounded, and reserved from the budget of all
//!   ([`connection_bytes`]): unfinished input, bodies of requests, requests in flight, replies until they are
//!   read ([`reply`]), and the state of HTTP itself ([`http_connection`]).

use std::{
    borrow::Cow,
    convert::Infallible,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use self::{
    activity::ConnectionActivity,
    connection_bytes::ConnectionBuffers,
    http_connection::{HttpConnection, RequestHandler, begin},
    monitored_io::MonitoredIo,
    timeouts::{CloseReason, Timeouts},
};
pub(crate) use self::{
    bodies::{BodyError, RequestBody, StreamedBytes},
    connection_bytes::ConnectionBytes,
    limits::{MAX_HEAD, MAX_PENDING},
};
use ahash::RandomState;
use bytes::Bytes;
use futures_util::{
    FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered,
};
use hyper::{Request, Response, body::Body};
use sluicegate_core::Clock as _;
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{
    TimeoutConfig,
    budgets::{buffers::BufferBudget, turn::Turn},
    clock::ServerClock,
    net::{LINGER, clients::ConnectionPermit, stream::Socket, worker::Port},
    stopping::stopped,
};

mod activity;
mod bodies;
mod connection_bytes;
mod http_connection;
mod input;
mod limits;
mod monitored_io;
mod timeouts;

/// Maximum number of bytes that a closed client may send within [`LINGER`], such as the body of an answered request:
/// more than the body of any honest request that is rejected.
pub(crate) const DRAIN: usize = 16 * 1024 * 1024;

/// The reply of HTTP/1.1 to a client whose request is not read.
pub(crate) const UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
      Content-Length: 0\r\n\r\n";

/// How connections that speak HTTP are served.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) clock: ServerClock,
    pub(crate) buffers: Arc<BufferBudget>,
    pub(crate) timeouts: TimeoutConfig,
    /// A connection is ended at about this age, so that clients redistribute over servers; zero: never.
    pub(crate) max_age: Duration,
}

/// The state that connections of one protocol on one worker share.
#[derive(Debug)]
pub(crate) struct WebPort {
    pub(crate) port: Port,
    pub(crate) settings: Settings,
}

/// Serves a client until it leaves, is closed, or the server stops: `answer` answers its requests,
/// `unavailable` is the reply where there is no memory for one, and `rejection` that to a connection of HTTP/1.1 for which
/// there is none, by the first bytes that it has sent.
pub(crate) async fn serve<A, F, B>(
    socket: Socket,
    permit: ConnectionPermit,
    web: Rc<WebPort>,
    answer: A,
    unavailable: fn() -> Response<B>,
    rejection: impl Fn(&[u8]) -> Cow<'static, [u8]>,
) where
    A: Fn(Request<RequestBody>) -> F + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (client, WebPort { port, settings }) = (&permit.client, &*web);
    let (worker, stats, clock) = (&port.worker, &port.stats, settings.clock);
    let mut stopping = worker.stop.subscribe();
    let connection = ConnectionBuffers::new(&settings.buffers);
    let mut secured = connection.reserve_nothing();
    if port.tls.is_some() && !secured.resize_for_connection(limits::TLS) {
        tracing::debug!(
            client = client.id,
            "rejected a TLS connection: --max-buffer-memory is used up"
        );
        return;
    }
    // Boxed, so that the state of the handshake is not part of each idle connection.
    let opened = Box::pin(port.open(socket, client, &mut stopping)).await;
    let Some(stream) = opened else { return };
    let activity = ConnectionActivity::new(connection.clone());
    let stream = MonitoredIo::new(stream, Rc::clone(&activity));
    let handler = Rc::new(RequestHandler { activity: Rc::clone(&activity), answer, unavailable });
    // `None` before the first byte, and while a connection of HTTP/1.1 is idle.
    let mut http: Option<Box<dyn HttpConnection>> = None;
    let mut charged = connection.reserve_nothing();
    let mut turn = Turn::new(&worker.turns);
    let mut seen_requests = activity.requests.get();
    // Whether an idle client of HTTP/2 got a GOAWAY, because others need the memory.
    let mut leaves = false;
    let mut timeouts = Timeouts::new(&settings.timeouts);
    // Rare events are polled when they have happened, not with each request.
    let rare: FuturesUnordered<LocalBoxFuture<'_, Event>> = FuturesUnordered::new();
    let mut rare = pin!(rare);
    rare.push(Box::pin(client.killed().map(|()| Event::Killed)));
    rare.push(Box::pin(async {
        stopped(&mut stopping).await;
        // Input that came before the stop is read first: only requests that were read are answered.
        yield_now().await;
        Event::Stop
    }));
    let check = |after: Duration| Box::pin(sleep(after).map(|()| Event::Check));
    rare.push(check(timeouts.next_check(clock.now())));
    rare.push(Box::pin(sleep(end_after(settings.max_age)).map(|()| Event::Stop)));
    loop {
        let next = poll_fn(|context| match &mut http {
            None => stream.poll_version(context).map(Event::Version),
            Some(it) => {
                stream.begin_turn();
                match it.poll(context) {
                    Poll::Ready(ended) => Poll::Ready(Event::Ended(ended)),
                    Poll::Pending if stream.is_turn_over() => Poll::Ready(Event::Turn),
                    Poll::Pending => {
                        turn.end();
                        activity.update_open();
                        if connection.is_waiting() && stream.has_left(context) {
                            Poll::Ready(Event::Left)
                        } else if connection.is_scarce() && activity.is_at_rest() {
                            Poll::Ready(Event::Rest)
                        } else {
                            Poll::Pending
                        }
                    }
                }
            }
        });
        let event = tokio::select! {
            biased;
            event = next => event,
            Some(event) = rare.next() => event,
        };
        match event {
            Event::Killed | Event::Left | Event::Version(None) => return,
            Event::Version(Some(is_http2)) => {
                if !charged.resize_for_connection(http_connection::cost(is_http2)) {
                    tracing::debug!(
                        client = client.id,
                        "rejected a connection: --max-buffer-memory is used up"
                    );
                    if port.tls.is_none() && !is_http2 {
                        stream.write_and_close(&rejection(&stream.first_bytes()));
                        linger(stream).await;
                    }
                    return;
                }
                http = Some(begin(stream.clone(), &handler, is_http2));
            }
            Event::Ended(ended) => {
                if let Err(error) = ended {
                    tracing::debug!(client = client.id, %error, "a connection ended");
                }
                // Its memory is not needed for the last reply.
                drop(http);
                linger(stream).await;
                return;
            }
            Event::Turn => {
                if !turn.try_lane() {
                    // Boxed, because it is rare, and its state would be part of each connection.
                    Box::pin(turn.lane()).await;
                }
                yield_now().await;
            }
            Event::Rest => release_idle_buffers(&mut http, &stream, &mut charged),
            Event::Stop => {
                if http.is_none() {
                    // Input that has arrived is read and answered.
                    let first = poll_fn(|context| Poll::Ready(stream.poll_version(context)));
                    let Poll::Ready(Some(is_http2)) = first.await else { return };
                    http = Some(begin(stream.clone(), &handler, is_http2));
                }
                http.iter_mut().for_each(|it| it.stop());
            }
            Event::Check => {
                let now = clock.now();
                match timeouts.check(&activity, now) {
                    None => {}
                    Some(CloseReason::Idle) => return stats.idle.add(),
                    Some(CloseReason::Slow) => return stats.slow.add(),
                }
                let has_rested = activity.rests() && activity.requests.get() == seen_requests;
                let is_in_the_way =
                    connection.is_nearly_full() || activity.uses_slots() && connection.is_scarce();
                match &mut http {
                    Some(_) if has_rested && activity.is_at_rest() => {
                        release_idle_buffers(&mut http, &stream, &mut charged);
                    }
                    Some(_) if has_rested && leaves => return stats.idle.add(),
                    Some(it) if has_rested && is_in_the_way => {
                        leaves = true;
                        it.stop();
                    }
                    _ => {}
                }
                seen_requests = activity.requests.get();
                rare.push(check(timeouts.next_check(now)));
            }
        }
    }
}

/// Gives a client that was rejected early time to read the reply: if unread input were left at the close, the
/// reset would drop the reply.
async fn linger(stream: MonitoredIo) {
    let _ = Box::pin(timeout(LINGER, stream.drain(DRAIN))).await;
}

/// Releases the buffers of an idle client of HTTP/1.1.
fn release_idle_buffers(
    http: &mut Option<Box<dyn HttpConnection>>,
    stream: &MonitoredIo,
    charged: &mut ConnectionBytes,
) {
    if let Some(unread) = http.take().map(HttpConnection::into_unread) {
        stream.unread(unread);
    }
    let _fewer = charged.resize_for_connection(0);
}

/// An event of a connection.
enum Event {
    /// An operator closes it.
    Killed,
    /// The client has left while its request waits.
    Left,
    /// The first bytes show whether HTTP/2 is spoken; `None`: the client has left.
    Version(Option<bool>),
    /// Its turn is over although there is more to do: other connections go first.
    Turn,
    /// It is idle, and others need the memory.
    Rest,
    Ended(hyper::Result<()>),
    /// The server stops.
    Stop,
    /// The time limits are to be checked.
    Check,
}

/// The age of a connection without a limit.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 86_400);

/// The age at which a connection is ended: `age` with a random jitter of a tenth, so that not all end at
/// once. Zero: never.
fn end_after(age: Duration) -> Duration {
    if age.is_zero() {
        return FOR_EVER;
    }
    let age = age.min(FOR_EVER);
    let steps = u32::try_from(RandomState::new().hash_one(age) % 2_000).unwrap_or_default();
    age / 10 * 9 + age / 10_000 * steps
}

#[cfg(test)]
mod max_age_tests {
    use super::*;

    #[test]
    fn end_after_is_jittered_by_a_tenth() {
        let age = Duration::from_secs(1_000);
        let ages: Vec<_> = (0..100).map(|_| end_after(age)).collect();
        let (least, most) = (Duration::from_secs(900), Duration::from_secs(1_100));
        assert!(ages.iter().all(|age| (least..=most).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age != ages[0]));
        assert_eq!(end_after(Duration::ZERO), FOR_EVER);
        assert!(end_after(Duration::MAX) < FOR_EVER * 2);
    }
}
