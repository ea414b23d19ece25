//! A connection as bytes: TCP, TLS over TCP, a Unix socket, or a connection that a simulation provides.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// An accepted connection that belongs to no runtime yet.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(std::net::TcpStream),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixStream),
    Simulated(Box<dyn SimulatedStream>),
}

/// A connection of a simulation, above the socket.
pub trait SimulatedStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// Writes without waiting, as a socket does.
    ///
    /// # Errors
    /// The connection has ended; or `WouldBlock`: nothing can be written at present.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

/// A connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(unix)]
    Unix(UnixStream),
    Simulated(Box<dyn SimulatedStream>),
}

/// Maximum number of encrypted bytes that are kept for a client that does not read.
const MAX_SEALED: usize = 16 * 1024;

/// A silent client is probed after a minute, and dropped a minute later.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(20))
    .with_retries(3);

impl Socket {
    /// The connection on the current runtime, after the handshake with TLS.
    pub(crate) async fn open(self, tls: Option<&Arc<ServerConfig>>) -> io::Result<Stream> {
        match self {
            Self::Tcp(socket) => {
                let stream = TcpStream::from_std(socket)?;
                // Replies are written in whole batches, so that Nagle's algorithm could only delay them.
                stream.set_nodelay(true)?;
                // The system probes silent clients, because application-level pings would cost a clock read for each
                // frame.
                SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
                match tls {
                    Some(tls) => {
                        let acceptor = TlsAcceptor::from(Arc::clone(tls));
                        let mut stream = acceptor.accept(stream).await?;
                        stream.get_mut().1.set_buffer_limit(Some(MAX_SEALED));
                        Ok(Stream::Tls(Box::new(stream)))
                    }
                    None => Ok(Stream::Tcp(stream)),
                }
            }
            #[cfg(unix)]
            Self::Unix(socket) => Ok(Stream::Unix(UnixStream::from_std(socket)?)),
            Self::Simulated(stream) => Ok(Stream::Simulated(stream)),
        }
    }

    /// Sends the last bytes, if that is possible without waiting.
    pub(crate) fn write_and_close(&self, text: &[u8]) {
        use std::io::Write;
        // The connection is closed in either case.
        let _ = match self {
            Self::Tcp(socket) => (&*socket).write(text),
            #[cfg(unix)]
            Self::Unix(socket) => (&*socket).write(text),
            Self::Simulated(stream) => stream.try_write(text),
        };
    }
}

impl Stream {
    /// Writes without waiting. `None`: with TLS that is not possible.
    #[inline]
    pub(crate) fn write_now(&self, bytes: &[u8]) -> Option<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Some(stream.try_write(bytes)),
            Self::Tls(_) => None,
            #[cfg(unix)]
            Self::Unix(stream) => Some(stream.try_write(bytes)),
            Self::Simulated(stream) => Some(stream.try_write(bytes)),
        }
    }

    /// The socket, without TLS.
    #[cfg(test)]
    pub(crate) fn plain(&self) -> Option<SockRef<'_>> {
        match self {
            Self::Tcp(stream) => Some(SockRef::from(stream)),
            Self::Tls(_) => None,
            #[cfg(unix)]
            Self::Unix(stream) => Some(SockRef::from(stream)),
            Self::Simulated(_) => None,
        }
    }
}

/// Calls a method of the connection of any kind, pinned as `$stream`.
macro_rules! on_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Tls(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            #[cfg(unix)]
            Stream::Unix(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Simulated(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn open_tcp_enables_keepalive() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let stream = Socket::Tcp(socket).open(None).await.unwrap();
        let socket = stream.plain().unwrap();
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(20));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
    }
}
