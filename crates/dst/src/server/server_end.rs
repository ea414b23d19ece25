//! The server's end of a connection: what passes it is reported to the ledger.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use sluicegate_server::simulation::SimulatedStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ledger::Ledger;
use crate::network::Stream;

#[derive(Debug)]
pub(super) struct ServerEnd {
    pub(super) stream: Stream,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    /// The number of the connection.
    pub(super) number: usize,
}

impl AsyncRead for ServerEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.ledger.lock().read(self.number, buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for ServerEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.ledger.lock().offered(self.number, bytes);
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.ledger.lock().accepted(self.number, count);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ledger.lock().flushed(self.number);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl SimulatedStream for ServerEnd {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.ledger.lock().offered(self.number, bytes);
        let written = self.stream.try_write(bytes);
        if let Ok(count) = written {
            self.ledger.lock().accepted(self.number, count);
        }
        written
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.ledger.lock().ended(self.number);
    }
}
