//! HTTP over connections in memory that delay their bytes.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::{Body, Frame, Incoming},
    client, server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf},
    sync::mpsc,
    time::sleep,
};

/// The longest delay of a connection, in each direction.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(40);

const BUFFER: usize = 64 * 1024;

/// The two ends of a connection. A byte arrives after `delay` to twice `delay`.
pub(crate) fn connection(delay: Duration) -> (DuplexStream, DuplexStream) {
    let (client, client_side) = io::duplex(BUFFER);
    let (server_side, server) = io::duplex(BUFFER);
    let (from_client, to_client) = io::split(client_side);
    let (from_server, to_server) = io::split(server_side);
    tokio::spawn(carry(from_client, to_server, delay));
    tokio::spawn(carry(from_server, to_client, delay));
    (client, server)
}

async fn carry(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    delay: Duration,
) -> io::Result<()> {
    let mut bytes = vec![0; BUFFER];
    loop {
        let length = from.read(&mut bytes).await?;
        sleep(delay).await;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&bytes[..length]).await?;
    }
}

/// Answers the requests of one connection.
pub(crate) async fn serve<F>(stream: DuplexStream, answer: impl Fn(Request<Incoming>) -> F)
where
    F: Future<Output = Response<Chunks>>,
{
    let service = service_fn(|request| {
        let reply = answer(request);
        async { Ok::<_, Infallible>(reply.await) }
    });
    // A connection that breaks is part of the example.
    let _ =
        server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Sends one request. If the future or the reply is dropped, the connection closes.
pub(crate) async fn send(
    stream: DuplexStream,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// A body that is sent while it is made.
pub(crate) struct Chunks(mpsc::Receiver<Bytes>);

impl Chunks {
    /// A body, and its sender. The sender is closed when the client has disconnected.
    pub(crate) fn channel() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(1);
        (sender, Self(receiver))
    }

    /// A response without a body.
    pub(crate) fn none(status: hyper::StatusCode) -> Response<Self> {
        let mut response = Response::new(Self::channel().1);
        *response.status_mut() = status;
        response
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}
