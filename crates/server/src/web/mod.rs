//! Connections that speak HTTP/1.1 or HTTP/2, whatever is asked over them.
//!
//! [`serve`] is what the faces for HTTP and gRPC have in common: the handshake, the limits of both
//! versions, patience with clients that are slow, the graceful stop. hyper decodes and encodes; the
//! face answers requests.
//!
//! Invariants:
//! - a client that begins something and does not finish it is closed, whatever bytes it sends, and
//!   so is one that does not take its replies ([`progress`]);
//! - what is kept for a connection is bounded: what was read of it, what is pending for it, and how
//!   many requests it makes at a time.

mod age;
mod progress;
mod watched;

use std::{future::Future, pin::pin, rc::Rc, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered,
};
use hyper::{Request, Response, body::Body, body::Incoming, rt::Executor, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    task::{spawn_local, yield_now},
    time::{sleep, timeout},
};

use self::{
    age::old_age,
    progress::{Ended, Patience, Progress},
    watched::Watched,
};
use crate::{
    face::Face,
    shared::{Seat, stopped},
    stream::Socket,
    worker::Worker,
};

/// The most that is kept of the head of a request, and of what is pending on HTTP/1.1, in bytes.
const MAX_BUFFER: usize = 128 * 1024;
/// The most that the fields of a request's head may take up, in bytes.
pub(crate) const MAX_HEAD: u32 = 32 * 1024;
/// The most fields in a request's head, on HTTP/1.1.
const MAX_FIELDS: usize = 100;
/// Requests of one client at a time, on HTTP/2.
const MAX_STREAMS: u32 = 256;
/// Requests that a client may take back before they were looked at.
const MAX_RESETS: usize = 32;
/// Requests that we may refuse for what is wrong in them.
const MAX_REFUSALS: usize = 128;
/// How much a client may send of one body, and of all, before it is read, on HTTP/2.
const WINDOW: u32 = 128 * 1024;
const WINDOW_OF_ALL: u32 = 512 * 1024;
/// The most that is pending for one request on HTTP/2, in bytes.
const MAX_PENDING: usize = 64 * 1024;
/// How long a closed client has for hearing the last words.
const LINGER: Duration = Duration::from_millis(500);
/// The most bytes that it may send meanwhile, as of a body whose request is answered: more than any
/// that is refused in good faith.
pub(crate) const DRAIN: usize = 16 * 1024 * 1024;

/// Serves a client until it leaves, is closed, or the server stops: `answer` answers its requests.
pub(crate) async fn serve<A, F, B, E>(socket: Socket, seat: Seat, worker: Rc<Worker>, answer: A)
where
    A: Fn(Request<Incoming>) -> F + 'static,
    F: Future<Output = Result<Response<B>, E>> + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let client = &seat.client;
    let mut stopping = worker.stop.subscribe();
    let Some(stream) = worker.open(socket, client, &mut stopping).await else { return };
    let progress = Rc::new(Progress::default());
    let flights = Rc::clone(&progress);
    let service = service_fn(move |request| {
        let flight = flights.begin();
        answer(request).inspect(move |_| drop(flight))
    });
    let builder = builder();
    let mut stream = Watched::new(stream, Rc::clone(&progress));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream.clone()), service));
    let mut patience = Patience::new(&worker.shared.config);
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
    seldom.push(look(patience.next_look()));
    // Envoys keep their connections, however many servers there are.
    let age = match client.face {
        Face::Grpc => worker.shared.config.envoy.max_age,
        Face::Resp | Face::Http => Duration::ZERO,
    };
    seldom.push(Box::pin(sleep(old_age(age)).map(|()| Event::Stop)));
    loop {
        let event = tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(client = client.id, %error, "a connection ended");
                }
                // Who was refused halfway may not have read why.
                let _ = timeout(LINGER, stream.drain(DRAIN)).await;
                return;
            }
            Some(event) = seldom.next() => event,
        };
        match event {
            Event::Killed => return,
            Event::Stop => connection.as_mut().graceful_shutdown(),
            Event::Look => {
                match patience.look(&progress, worker.shared.now()) {
                    None => {}
                    Some(Ended::Idle) => return worker.stats().idle.add(),
                    Some(Ended::Slow) => return worker.stats().slow.add(),
                }
                seldom.push(look(patience.next_look()));
            }
        }
    }
}

/// What happens to a connection besides requests.
enum Event {
    /// Somebody asked for it to be closed.
    Killed,
    /// The server stops.
    Stop,
    /// It is time to look whether it gets on.
    Look,
}

/// How both versions of HTTP are spoken. Which one it is, the client's first bytes tell.
fn builder() -> Builder<Local> {
    let mut builder = Builder::new(Local);
    // How long a head may take is our own affair: `progress`.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(MAX_BUFFER)
        .max_headers(MAX_FIELDS);
    builder
        .http2()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_REFUSALS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW_OF_ALL)
        .max_send_buf_size(MAX_PENDING);
    builder
}

/// Runs what belongs to a connection on the worker's own thread.
#[derive(Clone, Copy, Debug)]
struct Local;

impl<F> Executor<F> for Local
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        // It ends with its connection.
        drop(spawn_local(future));
    }
}
