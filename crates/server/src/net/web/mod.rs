//! Connections that speak HTTP/1.1 or HTTP/2, whatever is asked over them.
//!
//! [`serve`] is what the faces for HTTP and gRPC have in common: the handshake, the limits of both
//! versions, patience with clients that are slow, the graceful stop. hyper decodes and encodes; the
//! face answers requests.
//!
//! Invariants:
//! - a client that begins something and does not finish it is closed, whatever bytes it sends, and
//!   so is one that does not take its replies ([`progress`]);
//! - what is kept for a connection is bounded, and reserved from the memory that all share
//!   ([`held`]): unfinished input, bodies of requests, requests in flight, replies until they are
//!   taken ([`reply`]), and what it takes to speak HTTP at all ([`session`]).

mod age;
mod chunks;
mod held;
mod input;
mod limits;
mod patience;
mod progress;
mod reply;
mod request;
mod session;
mod watched;

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered,
};
use hyper::{Request, Response, body::Body};
use sluicegate_core::Clock as _;
use sluicegate_memory::SystemClock;
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};

use self::{
    age::old_age,
    held::ConnectionBuffers,
    patience::{Ended, Patience},
    progress::Progress,
    session::{Answering, Session, begin},
    watched::Watched,
};
pub(crate) use self::{
    held::Held,
    limits::{MAX_HEAD, MAX_PENDING},
    request::{BodyError, RequestBody},
};
use crate::{
    TimeoutConfig,
    budgets::{buffers::BufferBudget, turn::Turn},
    net::{clients::ConnectionPermit, stream::Socket, worker::Port},
    stopping::stopped,
};

/// How long a closed client has for hearing the last words.
const LINGER: Duration = Duration::from_millis(500);
/// The most bytes that it may send meanwhile, as of a body whose request is answered: more than any
/// that is refused in good faith.
pub(crate) const DRAIN: usize = 16 * 1024 * 1024;

/// The reply of HTTP/1.1 where nothing of a request was read.
pub(crate) const UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
      Content-Length: 0\r\n\r\n";

/// How connections that speak HTTP are served.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) clock: SystemClock,
    pub(crate) buffers: Arc<BufferBudget>,
    pub(crate) timeouts: TimeoutConfig,
    /// A connection is ended at about this age, so that clients spread over servers anew; zero: never.
    pub(crate) max_age: Duration,
}

/// What the connections of one protocol on one worker have in common.
#[derive(Debug)]
pub(crate) struct WebPort {
    pub(crate) port: Port,
    settings: Settings,
}

impl WebPort {
    pub(crate) const fn new(port: Port, settings: Settings) -> Self {
        Self { port, settings }
    }
}

/// Serves a client until it leaves, is closed, or the server stops: `answer` answers its requests,
/// and `unavailable` is the reply where there is no memory for one.
pub(crate) async fn serve<A, F, B>(
    socket: Socket,
    permit: ConnectionPermit,
    web: Rc<WebPort>,
    answer: A,
    unavailable: fn() -> Response<B>,
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
    let mut secured = connection.hold_nothing();
    if port.tls.is_some() && !secured.resize_for_connection(limits::TLS) {
        tracing::debug!(
            client = client.id,
            "rejected a TLS connection: --max-buffer-memory is used up"
        );
        return;
    }
    // In a box that is gone afterwards: a connection that rests is to take up little.
    let opened = Box::pin(port.open(socket, client, &mut stopping)).await;
    let Some(stream) = opened else { return };
    let progress = Progress::new(connection.clone());
    let stream = Watched::new(stream, Rc::clone(&progress));
    let answering = Rc::new(Answering { progress: Rc::clone(&progress), answer, unavailable });
    // There is none before the first byte, nor while a client of HTTP/1.1 rests.
    let mut session: Option<Box<dyn Session>> = None;
    let mut charged = connection.hold_nothing();
    let mut turn = Turn::new(&worker.turns);
    let mut rested = progress.requests();
    // Whether a client of HTTP/2 was told to leave, as it asks nothing and others need the memory.
    let mut leaves = false;
    let mut patience = Patience::new(&settings.timeouts);
    // What happens seldom is polled when it has happened, and not with each request.
    let seldom: FuturesUnordered<LocalBoxFuture<'_, Event>> = FuturesUnordered::new();
    let mut seldom = pin!(seldom);
    seldom.push(Box::pin(client.killed().map(|()| Event::Killed)));
    seldom.push(Box::pin(async {
        stopped(&mut stopping).await;
        // What came before that is read first: what is not read is not answered.
        yield_now().await;
        Event::Stop
    }));
    let look = |after: Duration| Box::pin(sleep(after).map(|()| Event::Look));
    seldom.push(look(patience.next_look(clock.now())));
    seldom.push(Box::pin(sleep(old_age(settings.max_age)).map(|()| Event::Stop)));
    loop {
        let next = poll_fn(|context| match &mut session {
            None => stream.poll_version(context).map(Event::Spoken),
            Some(it) => {
                stream.begin_turn();
                match it.poll(context) {
                    Poll::Ready(ended) => Poll::Ready(Event::Ended(ended)),
                    Poll::Pending if stream.is_turn_over() => Poll::Ready(Event::Turn),
                    Poll::Pending => {
                        turn.end();
                        progress.settle();
                        if connection.is_scarce() && progress.is_at_rest() {
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
            Some(event) = seldom.next() => event,
        };
        match event {
            Event::Killed => return,
            Event::Spoken(None) => return,
            Event::Spoken(Some(is_http2)) => {
                if !charged.resize_for_connection(session::cost(is_http2)) {
                    tracing::debug!(
                        client = client.id,
                        "rejected a connection: --max-buffer-memory is used up"
                    );
                    if port.tls.is_none() && !is_http2 {
                        stream.write_and_close(UNAVAILABLE);
                        linger(stream).await;
                    }
                    return;
                }
                session = Some(begin(stream.clone(), &answering, is_http2));
            }
            Event::Ended(ended) => {
                if let Err(error) = ended {
                    tracing::debug!(client = client.id, %error, "a connection ended");
                }
                // What it holds is not needed for the last words.
                drop(session);
                linger(stream).await;
                return;
            }
            Event::Turn => {
                if !turn.try_lane() {
                    // Seldom, and therefore in a box, so that it is no part of each connection.
                    Box::pin(turn.lane()).await;
                }
                yield_now().await;
            }
            Event::Rest => rest(&mut session, &stream, &mut charged),
            Event::Stop => {
                if session.is_none() {
                    // What has come is read, and answered.
                    let first = poll_fn(|context| Poll::Ready(stream.poll_version(context)));
                    let Poll::Ready(Some(is_http2)) = first.await else { return };
                    session = Some(begin(stream.clone(), &answering, is_http2));
                }
                session.iter_mut().for_each(|it| it.stop());
            }
            Event::Look => {
                let now = clock.now();
                match patience.look(&progress, now) {
                    None => {}
                    Some(Ended::Idle) => return stats.idle.add(),
                    Some(Ended::Slow) => return stats.slow.add(),
                }
                let has_rested = progress.rests() && progress.requests() == rested;
                let is_in_the_way =
                    connection.is_nearly_full() || progress.holds_slots() && connection.is_scarce();
                match &mut session {
                    Some(_) if has_rested && progress.is_at_rest() => {
                        rest(&mut session, &stream, &mut charged);
                    }
                    Some(_) if has_rested && leaves => return stats.idle.add(),
                    Some(it) if has_rested && is_in_the_way => {
                        leaves = true;
                        it.stop();
                    }
                    _ => {}
                }
                rested = progress.requests();
                seldom.push(look(patience.next_look(now)));
            }
        }
    }
}

/// Lets a client that was refused halfway read why: to close on what it still sends would make its
/// system drop our last words unread.
async fn linger(stream: Watched) {
    let _ = Box::pin(timeout(LINGER, stream.drain(DRAIN))).await;
}

/// Lets go of the buffers of a client of HTTP/1.1 that asks nothing at present.
fn rest(session: &mut Option<Box<dyn Session>>, stream: &Watched, charged: &mut Held) {
    if let Some(unread) = session.take().map(Session::into_unread) {
        stream.unread(unread);
    }
    let _fewer = charged.resize_for_connection(0);
}

/// What happens to a connection.
enum Event {
    /// Somebody asked for it to be closed.
    Killed,
    /// The first bytes have come, and tell whether HTTP/2 is spoken; `None`: the client has left.
    Spoken(Option<bool>),
    /// Its turn is over, though not what it sends: others go first.
    Turn,
    /// It asks nothing, and others need the memory.
    Rest,
    Ended(hyper::Result<()>),
    /// The server stops.
    Stop,
    /// It is time to look whether it gets on.
    Look,
}
