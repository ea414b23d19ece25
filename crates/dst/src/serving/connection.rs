//! A connection of a client to a server.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use parking_lot::Mutex;
use sluicegate_server::simulation::{SimulatedProtocol, SimulatedStream};
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    task::{JoinHandle, spawn_local},
};

use super::answers::{Answers, ReplyMatch};
use crate::{
    network::Stream,
    process::{Moment, Process},
    server::{Command, first_of},
};

/// How late a reply may be beyond the deadlines of the store, in milliseconds: its way, and the resolution of timers.
const LATE: u64 = 20;

/// A command that was sent and is not answered.
#[derive(Debug)]
pub(super) struct OutstandingCommand {
    pub(super) command: Command,
    /// Its keys.
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) at: Moment,
    /// How long its reply may take, in milliseconds.
    pub(super) most: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    /// Whether the server stops: it answers what it has read.
    is_stopping: Rc<Cell<bool>>,
    stream: Rc<RefCell<Stream>>,
    sent: Rc<RefCell<VecDeque<OutstandingCommand>>>,
    reader: JoinHandle<()>,
}

impl SimulatedStream for Stream {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Self::try_write(self, bytes)
    }
}

impl Connection {
    pub(super) fn new(
        stream: Stream,
        process: &Process,
        protocol: SimulatedProtocol,
        answers: &Arc<Mutex<Answers>>,
    ) -> Self {
        let (stream, sent) = (Rc::new(RefCell::new(stream)), Rc::new(RefCell::default()));
        let is_stopping = Rc::default();
        let client = Client {
            stream: Rc::clone(&stream),
            sent: Rc::clone(&sent),
            is_stopping: Rc::clone(&is_stopping),
            process: process.clone(),
            protocol,
            answers: Arc::clone(answers),
        };
        Self { is_stopping, stream, sent, reader: spawn_local(client.read()) }
    }

    /// Sends commands.
    pub(super) fn send(&self, commands: Vec<OutstandingCommand>, bytes: &[u8]) {
        self.sent.borrow_mut().extend(commands);
        // An error means that the connection has ended, which ends its reader, too.
        let _ = self.stream.borrow().try_write(bytes);
    }

    /// The server stops.
    pub(super) fn stops(&self) {
        self.is_stopping.set(true);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.reader.is_finished()
    }

    /// Commands without an answer.
    pub(super) fn open(&self) -> usize {
        if self.has_ended() { 0 } else { self.sent.borrow().len() }
    }

    /// Ends the connection, as a client that leaves.
    pub(super) fn close(&self, resets: bool) {
        self.reader.abort();
        if resets {
            self.stream.borrow().reset();
        }
    }
}

struct Client {
    is_stopping: Rc<Cell<bool>>,
    stream: Rc<RefCell<Stream>>,
    sent: Rc<RefCell<VecDeque<OutstandingCommand>>>,
    process: Process,
    protocol: SimulatedProtocol,
    answers: Arc<Mutex<Answers>>,
}

impl Client {
    /// Reads replies until the connection ends.
    async fn read(self) {
        let (mut bytes, mut space) = (Vec::new(), [0; 256]);
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            let read = poll_fn(|context| {
                Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, &mut buffer)
            });
            if read.await.is_err() || buffer.filled().is_empty() {
                break;
            }
            bytes.extend_from_slice(buffer.filled());
            while let Some(length) = self.first_reply(&bytes) {
                bytes.drain(..length);
            }
        }
        let open = self.sent.borrow().len();
        if open > 0 && !self.process.has_ended() && !self.is_stopping.get() {
            self.violate(format_args!("liveness: a server ends a connection with {open} commands"));
        }
    }

    fn violate(&self, what: std::fmt::Arguments<'_>) {
        self.process.checks().violation(what);
    }

    /// Checks the first reply, and returns its length, if it is complete.
    fn first_reply(&self, bytes: &[u8]) -> Option<usize> {
        let (received, length) = match first_of(bytes, self.protocol) {
            Ok(first) => first?,
            Err(error) => {
                self.violate(format_args!("protocol: {error}"));
                return None;
            }
        };
        let (reply, now) = (&received.reply, self.process.moment());
        let Some(sent) = self.sent.borrow_mut().pop_front() else {
            self.violate(format_args!("protocol: {reply:?} to nothing"));
            return Some(length);
        };
        let (process, _) = self.process.numbers();
        self.process.log().add(format_args!("client of process {process}: {reply:?}"));
        let replied = self.answers.lock().take(&sent.command, &sent.keys, reply);
        match (replied, &received.head) {
            (None, _) => self.violate(format_args!(
                "exactness: process {process} replies {reply:?} to {:?}, which its store did not answer",
                sent.command
            )),
            (Some(ReplyMatch::Certain { is_fallback }), Some(head)) => {
                let expected = sent.command.status(reply, is_fallback);
                if expected.is_some_and(|expected| expected != head.status) {
                    self.violate(format_args!(
                        "exactness: {head:?} to {:?}, not {expected:?}",
                        sent.command
                    ));
                }
            }
            _ => {}
        }
        let took = now.millis - sent.at.millis;
        let most = sent.most + LATE + (now.closed_for - sent.at.closed_for);
        if took > most {
            self.violate(format_args!("liveness: {:?} took {took} ms, not {most}", sent.command));
        }
        Some(length)
    }
}
