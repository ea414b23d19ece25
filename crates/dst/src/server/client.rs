//! A client: its link, and its connections.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use parking_lot::Mutex;
use sluicegate_server::simulation::SimulatedServer;
use tokio::{
    io::{AsyncRead, ReadBuf},
    task::{JoinHandle, spawn_local},
    time::{Instant, sleep_until},
};

use super::{
    command::{Command, ServerEnd},
    ledger::Ledger,
};
use crate::network::{Link, Stream};

#[derive(Debug)]
pub(super) struct Client {
    pub(super) index: usize,
    pub(super) link: Arc<Link>,
    /// Until when it does not read.
    pub(super) paused: Rc<Cell<Instant>>,
    /// Its connection, if it has one.
    pub(super) connection: Option<Connected>,
    /// Connections that it does not use any more, and does not close.
    pub(super) unused: Vec<Rc<RefCell<Stream>>>,
}

#[derive(Debug)]
pub(super) struct Connected {
    number: usize,
    stream: Rc<RefCell<Stream>>,
    reader: JoinHandle<()>,
}

impl Client {
    /// Sends commands at once, on a new connection if there is none.
    pub(super) fn send(
        &mut self,
        (server, ledger): (&SimulatedServer, &Arc<Mutex<Ledger>>),
        unread: usize,
        keys: &[(String, String)],
        commands: Vec<Command>,
    ) {
        if let Some(ended) = self.connection.take_if(|it| it.reader.is_finished()) {
            ledger.lock().left(ended.number);
        }
        if self.connection.is_none() {
            self.connection = self.connect(server, ledger, unread);
        }
        let Some(connected) = &self.connection else { return };
        let is_last = commands.last().is_some_and(Command::is_last);
        let mut bytes = Vec::new();
        for command in commands {
            let before = bytes.len();
            command.encode(keys, &mut bytes);
            ledger.lock().send(connected.number, command, bytes.len() - before);
        }
        // An error means that the connection has ended, which ends its reader, too.
        let _ = connected.stream.borrow().try_write(&bytes);
        if is_last {
            self.unused.push(Rc::clone(&connected.stream));
            self.leave(ledger);
        }
    }

    /// `None`: the server rejects it, because it has as many clients as it may.
    fn connect(
        &self,
        server: &SimulatedServer,
        ledger: &Arc<Mutex<Ledger>>,
        unread: usize,
    ) -> Option<Connected> {
        let (others, max) = (server.clients(), ledger.lock().bounds.clients);
        let (stream, of_server) = self.link.open_with(unread);
        let number = ledger.lock().open(stream.end());
        let end = ServerEnd { stream: of_server, observer: Arc::clone(ledger), number };
        let address = format!("client{}", self.index);
        let is_accepted = server.connect(Box::new(end), address);
        if is_accepted != (others < max) {
            ledger.lock().violate(format_args!(
                "bounds: another client is accepted ({is_accepted}) beside {others} of {max}"
            ));
        }
        if !is_accepted {
            ledger.lock().left(number);
            return None;
        }
        let stream = Rc::new(RefCell::new(stream));
        let reading = read(Rc::clone(&stream), Rc::clone(&self.paused), number, Arc::clone(ledger));
        Some(Connected { number, stream, reader: spawn_local(reading) })
    }

    /// Closes its connection. What the server still sends is lost.
    pub(super) fn leave(&mut self, ledger: &Mutex<Ledger>) {
        if let Some(Connected { number, reader, .. }) = self.connection.take() {
            ledger.lock().left(number);
            reader.abort();
        }
    }
}

/// Reads replies until the connection ends.
async fn read(
    stream: Rc<RefCell<Stream>>,
    paused: Rc<Cell<Instant>>,
    number: usize,
    ledger: Arc<Mutex<Ledger>>,
) {
    let mut space = [0; 256];
    loop {
        sleep_until(paused.get()).await;
        let mut buffer = ReadBuf::new(&mut space);
        let read =
            poll_fn(|context| Pin::new(&mut *stream.borrow_mut()).poll_read(context, &mut buffer));
        if read.await.is_err() || buffer.filled().is_empty() {
            return;
        }
        ledger.lock().received(number, buffer.filled().len());
    }
}

// The server's end of a connection: what passes it is reported to an observer.
