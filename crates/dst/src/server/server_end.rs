//! The server's end of a connection: what passes it is reported to an observer.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use sluicegate_server::simulation::SimulatedStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::network::Stream;

/// Observes connections, by their numbers.
pub(super) trait Observer: fmt::Debug + Send {
    /// The server has read bytes.
    fn read(&mut self, number: usize, bytes: usize);

    /// The server wants to write bytes, from the first that was not accepted on.
    fn offered(&mut self, _number: usize, _bytes: &[u8]) {}

    /// The network has accepted bytes of the server.
    fn accepted(&mut self, _number: usize, _bytes: usize) {}

    /// The server has closed the connection.
    fn ended(&mut self, _number: usize) {}
}

#[derive(Debug)]
pub(super) struct ServerEnd<O: Observer> {
    pub(super) stream: Stream,
    pub(super) observer: Arc<Mutex<O>>,
    /// The number of the connection.
    pub(super) number: usize,
}

impl<O: Observer> AsyncRead for ServerEnd<O> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.observer.lock().read(self.number, buffer.filled().len() - before);
        read
    }
}

impl<O: Observer> AsyncWrite for ServerEnd<O> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.observer.lock().offered(self.number, bytes);
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.observer.lock().accepted(self.number, count);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<O: Observer> SimulatedStream for ServerEnd<O> {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.observer.lock().offered(self.number, bytes);
        let written = self.stream.try_write(bytes);
        if let Ok(count) = written {
            self.observer.lock().accepted(self.number, count);
        }
        written
    }
}

impl<O: Observer> Drop for ServerEnd<O> {
    fn drop(&mut self) {
        self.observer.lock().ended(self.number);
    }
}
