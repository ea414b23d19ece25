//! A client: its link, and its connections.

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::Decision;
use sluicegate_resp::{Value, encode_command};
use sluicegate_server::simulation::{SimulatedServer, SimulatedStream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::{JoinHandle, spawn_local},
    time::{Instant, sleep_until},
};

use super::{ledger::Ledger, plan::Action};
use crate::{
    network::{Link, Stream},
    plan::Request,
};

#[derive(Debug)]
pub(super) struct Client {
    pub(super) index: usize,
    pub(super) link: Arc<Link>,
    /// Until when it does not read.
    pub(super) paused: Rc<Cell<Instant>>,
    /// Its connection, if it has one.
    pub(super) connection: Option<Connected>,
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
        let mut bytes = Vec::new();
        for command in commands {
            let before = bytes.len();
            command.encode(keys, &mut bytes);
            ledger.lock().send(connected.number, command, bytes.len() - before);
        }
        // An error means that the connection has ended, which ends its reader, too.
        let _ = connected.stream.borrow().try_write(&bytes);
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

// Commands of clients, and their bytes of RESP.

/// A command.
#[derive(Clone, Debug)]
pub(super) enum Command {
    One {
        key: usize,
        request: Request,
    },
    /// All or none. They wait if the timeout is more than 0.
    All {
        requests: Vec<(usize, Request)>,
        timeout: u64,
    },
    Wait {
        key: usize,
        request: Request,
        timeout: u64,
    },
}

impl Command {
    /// The commands of an action; `None` if it is not sent by commands.
    pub(super) fn of(action: &Action) -> Option<Vec<Self>> {
        Some(match action {
            Action::Request(requests) => {
                requests.iter().map(|&(key, request)| Self::One { key, request }).collect()
            }
            Action::All { requests, timeout } => {
                vec![Self::All { requests: requests.clone(), timeout: *timeout }]
            }
            &Action::Wait { key, request, timeout } => vec![Self::Wait { key, request, timeout }],
            &Action::Pipeline { key, cost, count } => {
                vec![Self::One { key, request: Request::Take(cost) }; count]
            }
            _ => return None,
        })
    }
}

/// The name of a key.
pub(super) fn key_name(index: usize) -> String {
    format!("key{index}")
}

impl Command {
    /// Appends the command as bytes of RESP. `keys` are the names and policies of the keys.
    pub(super) fn encode(&self, keys: &[(String, String)], out: &mut Vec<u8>) {
        let mut words: Vec<String> = Vec::new();
        let key_name = |key: usize| keys[key].0.clone();
        let policy = |key: usize| keys[key].1.clone();
        match self {
            Self::One { key, request: Request::Reset } => {
                words.extend(["SG.RESET".into(), key_name(*key)]);
            }
            Self::One { key, request } => {
                let (name, options) = of_request(*request);
                words.extend([name.into(), key_name(*key), policy(*key)]);
                words.extend(options);
            }
            Self::All { requests, timeout } => {
                words.extend(["SG.TAKEALL".into(), requests.len().to_string()]);
                for (key, request) in requests {
                    words.extend([key_name(*key), policy(*key), request.cost().to_string()]);
                }
                if let Some((_, Request::Hold(id, _, ttl))) = requests.first() {
                    words.extend(["ID".into(), format!("hold{id}"), "TTL".into(), micros(*ttl)]);
                }
                if *timeout > 0 {
                    words.extend(["TIMEOUT".into(), micros(*timeout)]);
                }
            }
            Self::Wait { key, request, timeout } => {
                let (name, options) = of_request(*request);
                let name = if name == "SG.TAKE" { "SG.WAIT" } else { name };
                words.extend([name.into(), key_name(*key), policy(*key)]);
                words.extend(options);
                words.extend(["TIMEOUT".into(), micros(*timeout)]);
            }
        }
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        encode_command(&words, out);
    }
}

impl Command {
    /// Its keys, with their requests.
    pub(super) fn requests(&self) -> Vec<(usize, Request)> {
        match self {
            Self::One { key, request } | Self::Wait { key, request, .. } => vec![(*key, *request)],
            Self::All { requests, .. } => requests.clone(),
        }
    }

    /// The key that it names first.
    pub(super) fn first_key(&self) -> usize {
        self.requests().first().map_or(0, |it| it.0)
    }

    /// How long it may wait.
    pub(super) const fn timeout(&self) -> Duration {
        match self {
            Self::Wait { timeout, .. } | Self::All { timeout, .. } => {
                Duration::from_millis(*timeout)
            }
            Self::One { .. } => Duration::ZERO,
        }
    }
}

fn micros(millis: u64) -> String {
    (millis * 1000).to_string()
}

/// The name of a command, and its arguments after the policy.
fn of_request(request: Request) -> (&'static str, Vec<String>) {
    let cost = |cost: u32| vec!["COST".to_owned(), cost.to_string()];
    match request {
        Request::Take(units) => ("SG.TAKE", cost(units)),
        Request::Peek(units) => ("SG.PEEK", cost(units)),
        Request::Charge(units) => ("SG.CHARGE", cost(units)),
        Request::Refund(units) => ("SG.REFUND", cost(units)),
        Request::Reserve(units, wait) => {
            ("SG.RESERVE", [cost(units), vec!["MAXWAIT".into(), micros(wait)]].concat())
        }
        Request::Reset => ("SG.RESET", Vec::new()),
        Request::Hold(id, units, ttl) => {
            let options = [cost(units), vec!["TTL".into(), micros(ttl)]].concat();
            ("SG.HOLD", [vec![format!("hold{id}")], options].concat())
        }
        Request::Settle(id, used) => {
            let used = used.map(|units| vec!["USED".into(), units.to_string()]);
            ("SG.SETTLE", [vec![format!("hold{id}")], used.unwrap_or_default()].concat())
        }
        Request::Renew(id, ttl) => {
            ("SG.RENEW", vec![format!("hold{id}"), "TTL".into(), micros(ttl)])
        }
    }
}

// Replies of the server by any protocol, and by RESP.

/// The integers of a decision, in the order of RESP.
pub(super) type Integers = [i64; 7];

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Decision(Integers),
    /// The decision on several keys, the index of the one that binds, and the decision on each.
    MultiKey {
        decision: Integers,
        key: i64,
        each: Vec<Integers>,
    },
    Reset,
    Error(String),
    /// A reply that no command may get.
    Other(String),
}

impl Reply {
    /// Whether it allows something.
    pub(super) const fn is_allowed(&self) -> bool {
        matches!(self, Self::Decision([1, ..]) | Self::MultiKey { decision: [1, ..], .. })
    }

    pub(super) const fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Whether it is this decision, or both are errors.
    pub(super) fn agrees(&self, expected: &Result<Decision, String>) -> bool {
        match (self, expected) {
            (Self::Error(_), Err(_)) => true,
            (Self::Decision(integers), Ok(expected)) => *integers == expected.to_integers(),
            _ => false,
        }
    }
}

/// The reply that a value of RESP is.
pub(super) fn of_value(value: &Value) -> Reply {
    let other = || Reply::Other(format!("{value:?}"));
    match value {
        Value::Integer(0 | 1) => Reply::Reset,
        Value::Error(text) => Reply::Error(String::from_utf8_lossy(text).into_owned()),
        Value::Array(values) => {
            if let Some(integers) = integers(value, 0..7) {
                return if values.len() == 7 { Reply::Decision(integers) } else { other() };
            }
            let multi_key = || {
                let first @ Value::Array(members) = values.first()? else { return None };
                let decision = integers(first, 0..7)?;
                let Value::Integer(key) = *members.get(7)? else { return None };
                let each = values.iter().skip(1).map(|it| integers(it, 0..7));
                Some(Reply::MultiKey { decision, key, each: each.collect::<Option<_>>()? })
            };
            multi_key().unwrap_or_else(other)
        }
        _ => other(),
    }
}

/// The integers at these places of an array.
fn integers(value: &Value, places: std::ops::Range<usize>) -> Option<Integers> {
    let Value::Array(values) = value else { return None };
    let integers = values.get(places)?.iter().map(|it| match it {
        Value::Integer(it) => Some(*it),
        _ => None,
    });
    integers.collect::<Option<Vec<_>>>()?.try_into().ok()
}
