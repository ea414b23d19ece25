//! HTTP over a connection: hyper with our limits, and the requests that it decodes.

use std::{
    convert::Infallible,
    future::{Future, ready},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::Either};
use hyper::{
    Request, Response, Version,
    body::{Body, Incoming},
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::spawn_local;

use super::{
    activity::{ConnectionActivity, InFlightGuard},
    bodies::{ChunkedBody, RequestBody},
    limits::{
        FIELD, FREE_HEAD, FREE_REPLY, HTTP1, HTTP2, MAX_BUFFER, MAX_FIELDS, MAX_HEAD, MAX_PENDING,
        MAX_REJECTIONS, MAX_RESETS, MAX_STREAMS, STREAM, WINDOW, WINDOW_OF_ALL,
    },
    monitored_io::MonitoredIo,
};

/// The bytes that are reserved for a connection while HTTP is spoken on it.
pub(super) const fn cost(is_http2: bool) -> usize {
    if is_http2 { HTTP2 } else { HTTP1 }
}

/// How the requests of a connection are answered.
pub(super) struct RequestHandler<A, B> {
    pub(super) activity: Rc<ConnectionActivity>,
    pub(super) answer: A,
    /// The reply where there is no memory for another.
    pub(super) unavailable: fn() -> Response<B>,
}

/// A request is rejected unread, because there is no memory for it: its client may send it again.
#[derive(Debug, thiserror::Error)]
#[error("no memory for another request")]
pub(super) struct OutOfMemory(#[source] h2::Error);

/// HTTP over one connection, in either version.
pub(super) trait HttpConnection {
    /// Continues. Ready at the end of the connection.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>>;

    /// Answers the requests that have arrived, and none after them.
    fn stop(&mut self);

    /// Ends an idle connection; returns the bytes of the next request that were read.
    fn into_unread(self: Box<Self>) -> Bytes;
}

/// Starts HTTP on a connection.
pub(super) fn begin<A, F, B>(
    stream: MonitoredIo,
    handler: &Rc<RequestHandler<A, B>>,
    is_http2: bool,
) -> Box<dyn HttpConnection>
where
    A: Fn(Request<RequestBody>) -> F + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let handler = Rc::clone(handler);
    let service = service_fn(move |request| handler.call(request));
    let io = TokioIo::new(stream);
    if is_http2 {
        let mut builder = http2::Builder::new(LocalExecutor);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_local_error_reset_streams(MAX_REJECTIONS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW_OF_ALL)
            .max_send_buf_size(MAX_PENDING);
        return Box::new(Spoken {
            connection: builder.serve_connection(io, service),
            stop: |connection| connection.graceful_shutdown(),
            // A connection of HTTP/2 has state on both sides, and is never ended while idle.
            into_unread: |_| Bytes::new(),
        });
    }
    let mut builder = http1::Builder::new();
    // `timeouts` limits how long a head may take.
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(MAX_BUFFER)
        .max_headers(MAX_FIELDS);
    Box::new(Spoken {
        connection: builder.serve_connection(io, service),
        stop: |connection| connection.graceful_shutdown(),
        into_unread: |connection| connection.into_parts().read_buf,
    })
}

impl<A, F, B> RequestHandler<A, B>
where
    A: Fn(Request<RequestBody>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Unpin,
{
    #[inline]
    fn call(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ChunkedBody<B>>, OutOfMemory>> + use<A, F, B> {
        let is_http2 = request.version() == Version::HTTP_2;
        let head = head_size(&request);
        let mut guard = self.activity.begin();
        let cost =
            if self.activity.is_alone() { head.saturating_sub(FREE_HEAD) } else { STREAM + head };
        let unavailable = self.unavailable;
        if guard.add_bytes(cost) {
            let request = request.map(|body| RequestBody::new(body, guard.reserve_nothing(), head));
            let answer = (self.answer)(request);
            return Either::Left(answer.map(move |reply| {
                let Ok(reply) = reply;
                Ok(count_reply(reply, guard, is_http2, unavailable))
            }));
        }
        // A reply would use still more memory for a client that may not read it.
        Either::Right(ready(if is_http2 {
            Err(OutOfMemory(h2::Reason::REFUSED_STREAM.into()))
        } else {
            Ok(unavailable().map(|body| ChunkedBody::new(body, guard, false)))
        }))
    }
}

/// A reply whose bytes are counted until the client has read them.
#[inline]
fn count_reply<B: Body<Data = Bytes> + Unpin>(
    mut reply: Response<B>,
    mut guard: InFlightGuard,
    is_http2: bool,
    unavailable: fn() -> Response<B>,
) -> Response<ChunkedBody<B>> {
    let size = usize::try_from(reply.body().size_hint().lower()).unwrap_or(usize::MAX);
    if size > FREE_REPLY && !guard.add_bytes(size) {
        reply = unavailable();
    }
    reply.map(|body| ChunkedBody::new(body, guard, is_http2))
}

/// The size of a head in bytes: names and values of headers, path and query.
#[inline]
fn head_size(request: &Request<Incoming>) -> usize {
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| FIELD + name.as_str().len() + value.len());
    let uri = request.uri();
    fields.sum::<usize>() + uri.path().len() + uri.query().map_or(0, str::len)
}

/// A connection of hyper, and what differs between the versions.
struct Spoken<C> {
    connection: C,
    stop: fn(Pin<&mut C>),
    into_unread: fn(C) -> Bytes,
}

impl<C: Future<Output = hyper::Result<()>> + Unpin> HttpConnection for Spoken<C> {
    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        Pin::new(&mut self.connection).poll(context)
    }

    fn stop(&mut self) {
        (self.stop)(Pin::new(&mut self.connection));
    }

    fn into_unread(self: Box<Self>) -> Bytes {
        (self.into_unread)(self.connection)
    }
}

/// Runs tasks of a connection on the thread of its worker.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        // It ends with its connection.
        drop(spawn_local(future));
    }
}
