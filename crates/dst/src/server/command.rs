//! What passes the sockets of a server: commands of clients, and replies.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::Decision;
use sluicegate_resp::{Value, encode_command};
use sluicegate_server::simulation::SimulatedStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::plan::Action;
use crate::{network::Stream, plan::Request};

/// Observes connections, by their numbers.
pub(super) trait Observer: fmt::Debug + Send {
    /// The server has read bytes.
    fn read(&mut self, number: usize, bytes: usize);

    /// The server wants to write bytes, from the first that was not accepted on.
    fn offered(&mut self, _number: usize, _bytes: &[u8]) {}

    /// The network has accepted bytes of the server.
    fn accepted(&mut self, _number: usize, _bytes: usize) {}

    /// The server has sent its last byte, and drops what it still reads.
    fn closes(&mut self, _number: usize) {}

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
        self.observer.lock().closes(self.number);
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
    /// Bytes that are no command.
    Invalid,
    /// So many bytes of a command that does not end.
    Unfinished(usize),
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
            &Action::Invalid { key } => {
                vec![Self::One { key, request: Request::Take(1) }, Self::Invalid]
            }
            &Action::Unfinished { bytes } => vec![Self::Unfinished(bytes)],
            _ => return None,
        })
    }

    /// Whether no command may follow on its connection.
    pub(super) const fn is_last(&self) -> bool {
        matches!(self, Self::Invalid | Self::Unfinished(_))
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
            Self::Invalid => return out.extend_from_slice(b"*x\r\n"),
            Self::Unfinished(bytes) => {
                let start = out.len();
                out.extend_from_slice(b"*3\r\n$7\r\nSG.TAKE\r\n$90000\r\n");
                return out.resize(start + bytes, b'k');
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
            Self::Invalid | Self::Unfinished(_) => Vec::new(),
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
            Self::One { .. } | Self::Invalid | Self::Unfinished(_) => Duration::ZERO,
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
