//! The commands sent to the server, its replies, and the decisions of the oracle on them.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, mem, slice,
    sync::Arc,
};

use sluicegate_conformance::OracleSubject;
use sluicegate_core::{Decision, PreparedPolicy, Timestamp};
use sluicegate_server::simulation::SimulatedProtocol;

use super::{
    clock,
    command::Command,
    metrics::Metrics,
    plan::Bounds,
    received::{Received, first_of},
    reply::Reply,
    reply_counts::{ReplyCounts, protocol_name},
    server_end::Observer,
    turn,
};
use crate::{
    event_log::EventLog, network::StreamEnd, oracle::decide, plan::Request, recording::MarkKind,
    redis_model::ScriptCall,
};

/// The reply to a connection for which there is no memory.
const NO_MEMORY: &str = "ERR max buffer memory reached";
/// Bytes behind a command that waits which need no memory of all clients.
const READ_AHEAD: usize = 1024;
/// Bytes of a buffer that clients of a simulation never fill.
const UNLIMITED_BUFFER: usize = 1 << 20;
/// A turn reads fewer bytes: it ends after 16 KiB, and reads as many at a time.
const MAX_TURN: usize = 32 << 10;

/// A key, as the oracle knows it.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The policy in force, and its name in HTTP.
    pub(super) policy: PreparedPolicy,
    pub(super) policy_name: String,
    pub(super) state: OracleSubject,
    /// The request that could pass, and since when it could, in milliseconds.
    pub(super) ready: Option<(u64, u64)>,
}

/// A command that was sent and is not answered.
#[derive(Debug)]
pub(super) struct PendingCommand {
    pub(super) command: Command,
    /// Bytes of the connection up to its end.
    end: usize,
    pub(super) waiting: Option<WaitState>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct WaitState {
    /// Its place among all.
    pub(super) arrival: u64,
    pub(super) deadline: Timestamp,
    /// That of its first key when it arrived: it keeps it when rules are reloaded.
    pub(super) policy: PreparedPolicy,
    /// Since when all keys of a request for several allow it, in milliseconds.
    pub(super) could_pass_since: Option<u64>,
    /// Since when it waits for a hold that is open already, in milliseconds.
    pub(super) repeats_since: Option<u64>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    client: usize,
    pub(super) protocol: SimulatedProtocol,
    pub(super) sent: VecDeque<PendingCommand>,
    /// Bytes: sent by the client, read by the server, offered by it, accepted by the network, received by the client.
    bytes_sent: usize,
    read: usize,
    offered: usize,
    accepted: usize,
    received: usize,
    /// Under little memory: the read offset after which the server may drop commands behind a waiting one.
    pub(super) kept: Option<usize>,
    /// Whether the server has flushed them.
    is_flushed: bool,
    /// The bytes of an incomplete reply that the server has offered.
    undecoded: Vec<u8>,
    /// Whether the server has closed it.
    pub(super) has_ended: bool,
    /// Whether the client does not read any more.
    is_left: bool,
    /// The end of what the client sends, and since when it has arrived, in milliseconds.
    pub(super) end: StreamEnd,
    pub(super) gone_since: Option<u64>,
}

impl Connection {
    /// Commands that the server has read and not answered. It may have begun with them.
    fn begun(&self) -> u64 {
        self.sent.iter().filter(|it| it.end <= self.read).count() as u64
    }
}

/// All data about a run.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) keys: Vec<Key>,
    pub(super) connections: Vec<Connection>,
    pub(super) log: Arc<EventLog>,
    /// The replies by each protocol.
    pub(super) replied: BTreeMap<&'static str, ReplyCounts>,
    /// Requests that have begun to wait.
    pub(super) arrivals: u64,
    pub(super) bounds: Bounds,
    /// Whether the server stops: requests that wait are then denied.
    pub(super) is_stopping: bool,
    pub(super) millis: fn() -> u64,
    pub(super) violation: Option<String>,
}

impl Ledger {
    pub(super) fn violate(&mut self, what: fmt::Arguments<'_>) {
        let millis = (self.millis)();
        self.violation.get_or_insert_with(|| format!("after {millis} ms: {what}"));
    }

    /// A new connection of a client. Returns its number.
    pub(super) fn open(
        &mut self,
        client: usize,
        protocol: SimulatedProtocol,
        end: StreamEnd,
    ) -> usize {
        self.connections.push(Connection {
            client,
            protocol,
            sent: VecDeque::new(),
            bytes_sent: 0,
            read: 0,
            offered: 0,
            accepted: 0,
            kept: None,
            is_flushed: true,
            received: 0,
            undecoded: Vec::new(),
            has_ended: false,
            is_left: false,
            end,
            gone_since: None,
        });
        self.connections.len() - 1
    }

    /// The client sends a command; `bytes` is its length.
    pub(super) fn send(&mut self, number: usize, command: Command, bytes: usize) {
        self.log.add(format_args!("connection {number}: {command:?}"));
        let connection = &mut self.connections[number];
        connection.bytes_sent += bytes;
        let end = connection.bytes_sent;
        connection.sent.push_back(PendingCommand { command, end, waiting: None });
    }

    /// The number of commands without an answer.
    pub(super) fn unanswered(&self, number: usize) -> usize {
        self.connections[number].sent.len()
    }

    /// The client has received bytes.
    pub(super) fn received(&mut self, number: usize, bytes: usize) {
        self.connections[number].received += bytes;
    }

    /// The client has left, or lost, the connection.
    pub(super) fn left(&mut self, number: usize) {
        self.connections[number].is_left = true;
    }

    /// A command that may wait does so once it was read and all replies before it are written.
    fn begin_to_wait(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        let is_written = connection.accepted == connection.offered;
        let read = connection.kept.unwrap_or(connection.read);
        if let Some(PendingCommand { command, end, waiting }) = connection.sent.front_mut()
            && !command.timeout().is_zero()
            && is_written
            && read >= *end
            && waiting.is_none()
        {
            self.arrivals += 1;
            self.log.add(format_args!("connection {number} waits"));
            *waiting = Some(WaitState {
                arrival: self.arrivals,
                deadline: clock::now() + command.timeout(),
                policy: self.keys[command.first_key()].policy.clone(),
                could_pass_since: None,
                repeats_since: None,
            });
            self.note_repeated(number);
        }
    }

    fn replied(&mut self, number: usize, received: &Received) {
        let (now, reply) = (clock::now(), &received.reply);
        self.log.add(format_args!("connection {number} gets {reply:?} at {now}"));
        let connection = &mut self.connections[number];
        let (client, read) = (connection.client, connection.read);
        let protocol = connection.protocol;
        if matches!(reply, Reply::Error(text) if text == NO_MEMORY) {
            return self.rejected(number);
        }
        let Some(sent) = connection.sent.pop_front() else {
            return self
                .violate(format_args!("protocol: connection {number}: {reply:?} to nothing"));
        };
        if read < sent.end {
            return self
                .violate(format_args!("protocol: {reply:?} to a command that was not read"));
        }
        if sent.waiting.is_some() && connection.kept == Some(read) {
            connection.kept = None;
        }
        let kind = match reply {
            Reply::Decision(_) | Reply::MultiKey { .. } if reply.is_allowed() => MarkKind::Allowed,
            Reply::Decision(_) | Reply::MultiKey { .. } => MarkKind::Denied,
            _ => MarkKind::Error,
        };
        self.log.mark((self.millis)(), client, kind);
        let replied = self.replied.entry(protocol_name(protocol)).or_default();
        replied.commands += 1;
        let each = match reply {
            Reply::Decision(decision) if sent.command.decides() => slice::from_ref(decision),
            Reply::MultiKey { each, .. } => each,
            _ => &[],
        };
        for [is_allowed, ..] in each {
            replied.decisions[usize::from(*is_allowed == 0)] += 1;
        }
        self.check_reply(number, &sent, received, now);
    }

    /// The server has no memory for what it would keep of the connection. If it has read a command, it has not run it.
    fn rejected(&mut self, number: usize) {
        if self.bounds.bytes >= UNLIMITED_BUFFER {
            self.violate(format_args!("bounds: connection {number} is rejected"));
        }
        let connection = &mut self.connections[number];
        let read = connection.read;
        if connection.sent.pop_front_if(|sent| sent.end <= read).is_some() {
            self.replied.entry(protocol_name(connection.protocol)).or_default().lost += 1;
        }
    }

    /// Checks what the server counts: clients, requests that wait, and bytes that it buffers.
    pub(super) fn check_bounds(&mut self, [clients, waiting, buffered]: [usize; 3]) {
        let open = self.connections.iter().filter(|it| !it.has_ended).count();
        let Bounds { clients: max, bytes } = self.bounds;
        if clients.max(open) > max || waiting > clients || buffered > bytes {
            self.violate(format_args!(
                "bounds: {clients} clients ({open} are open) of {max}, {waiting} wait, {buffered} bytes of {bytes}"
            ));
        }
    }

    fn check_reply(
        &mut self,
        number: usize,
        sent: &PendingCommand,
        received: &Received,
        now: Timestamp,
    ) {
        match &sent.command {
            Command::One { key, request } => {
                self.check_one(*key, *request, received, now);
            }
            // A client of HTTP that has left waits for nothing.
            Command::All { timeout: 1.., .. } | Command::Wait { .. }
                if received.head.as_ref().is_some_and(|it| it.status == 400)
                    && self.connections[number].end.has_arrived() => {}
            Command::All { operation, takes, .. } => {
                self.check_all(*operation, takes, sent, received, now);
            }
            Command::Wait { key, cost, hold, .. } => {
                self.check_waited(sent, (*key, *cost, *hold), received, now);
            }
        }
    }

    /// The policy under which a request on a key is decided.
    pub(super) fn policy_of(&self, key: usize, sent: &PendingCommand) -> PreparedPolicy {
        let of_key = || self.keys[key].policy.clone();
        sent.waiting.as_ref().map_or_else(of_key, |it| it.policy.clone())
    }

    fn check_one(&mut self, key: usize, request: Request, received: &Received, now: Timestamp) {
        let reply = &received.reply;
        let id = request.hold_id();
        let Key { policy, state, .. } = &mut self.keys[key];
        let call = ScriptCall { policy: policy.policy(), operation: request.operation(&id) };
        let expected = decide(state, call, now);
        let is_right = match request {
            Request::Reset => *reply == Reply::Reset,
            _ => reply.agrees(&expected),
        };
        let is_query =
            matches!(request, Request::Peek(_) | Request::Settle(..) | Request::Renew(..));
        self.check_head(received, key, expected.as_ref().ok(), is_query);
        if !is_right {
            self.violate(format_args!(
                "exactness: {request} of key{key} at {now}: {reply:?}, but the oracle decides {:?}",
                expected.map(|it| it.to_integers())
            ));
        }
    }

    /// Checks the head of a response of HTTP about a decision on a key.
    pub(super) fn check_head(
        &mut self,
        received: &Received,
        key: usize,
        expected: Option<&Decision>,
        is_query: bool,
    ) {
        if let (Some(head), Some(expected)) = (&received.head, expected)
            && !received.reply.is_error()
            && received.reply != Reply::Reset
            && let Some(error) = head.error(expected, &self.keys[key].policy_name, is_query)
        {
            self.violate(format_args!("exactness: {error}"));
        }
    }

    /// Whether every command is answered, of clients that read.
    pub(super) fn is_idle(&self) -> bool {
        let is_idle = |it: &Connection| it.is_left || it.has_ended || it.sent.is_empty();
        self.connections.iter().all(is_idle)
    }

    /// Checks the counters of the server, after all commands are answered.
    pub(super) fn check_metrics(&mut self, metrics: &Metrics) {
        for protocol in [SimulatedProtocol::Resp, SimulatedProtocol::Http] {
            let name = protocol_name(protocol);
            let mut replied = self.replied.get(name).copied().unwrap_or_default();
            // Requests of clients that vanished wait until the server notices it.
            let open = self.connections.iter().filter(|it| !it.has_ended);
            let open = open.filter(|it| it.protocol == protocol);
            replied.lost += open.map(Connection::begun).sum::<u64>();
            if let Some(difference) = replied.compare(protocol, metrics) {
                self.violate(format_args!("honesty: {difference}"));
            }
        }
    }

    /// Checks that every client that reads has received what was offered to it.
    pub(super) fn check_received(&mut self) {
        // One for which there is no memory may end.
        let may_end = self.bounds.bytes < UNLIMITED_BUFFER;
        let lacks = |it: &Connection| {
            let is_over = it.is_left || it.has_ended && may_end;
            !is_over && (it.has_ended || !it.sent.is_empty() || it.received != it.offered)
        };
        if let Some(number) = self.connections.iter().position(lacks) {
            let connection = format!("{:?}", self.connections[number]);
            self.violate(format_args!("liveness: connection {number} lacks replies: {connection}"));
        }
    }
}

impl Observer for Ledger {
    fn read(&mut self, number: usize, bytes: &[u8], _ends_now: bool) {
        let connection = &mut self.connections[number];
        connection.read += bytes.len();
        // Commands behind one that waits are kept and do not run. Commands after a rejection are dropped.
        let runs = connection.protocol == SimulatedProtocol::Resp
            && connection.sent.front().is_none_or(|it| it.waiting.is_none())
            && !self.is_stopping
            && self.bounds.bytes >= UNLIMITED_BUFFER;
        let turn = if runs { turn::read(bytes.len()) } else { 0 };
        if self.bounds.bytes < UNLIMITED_BUFFER
            && connection.kept.is_none()
            && let Some(PendingCommand { end, waiting: Some(_), .. }) = connection.sent.front()
            && connection.read >= end + READ_AHEAD
        {
            connection.kept = Some(connection.read);
        }
        if self.connections[number].protocol == SimulatedProtocol::Resp {
            self.begin_to_wait(number);
        }
        if turn >= MAX_TURN {
            self.violate(format_args!(
                "bounds: connection {number} reads {turn} bytes in one turn, before others have theirs"
            ));
        }
    }

    fn offered(&mut self, number: usize, bytes: &[u8]) {
        let connection = &mut self.connections[number];
        let known = connection.offered - connection.accepted;
        let new = bytes.get(known..).unwrap_or_default();
        connection.offered += new.len();
        connection.undecoded.extend_from_slice(new);
        loop {
            let connection = &mut self.connections[number];
            match first_of(&connection.undecoded, connection.protocol) {
                Ok(Some((received, length))) => {
                    connection.undecoded.drain(..length);
                    self.replied(number, &received);
                }
                Ok(None) => return,
                Err(error) => {
                    return self.violate(format_args!("protocol: connection {number}: {error}"));
                }
            }
        }
    }

    fn accepted(&mut self, number: usize, bytes: usize) {
        self.connections[number].accepted += bytes;
        match self.connections[number].protocol {
            SimulatedProtocol::Resp => self.begin_to_wait(number),
            SimulatedProtocol::Grpc => {}
            SimulatedProtocol::Http => self.connections[number].is_flushed = false,
        }
    }

    /// With HTTP the server flushes after each reply, and once more after it has begun with the
    /// next request: after some replies it first lets other connections go.
    fn flushed(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        if connection.protocol == SimulatedProtocol::Http
            && mem::replace(&mut connection.is_flushed, true)
        {
            self.begin_to_wait(number);
        }
    }

    fn ended(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        connection.has_ended = true;
        let replied = self.replied.entry(protocol_name(connection.protocol)).or_default();
        replied.lost += connection.begun();
        self.log.add(format_args!("connection {number} ends"));
    }
}
