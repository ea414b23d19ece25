//! What was sent to the server, what it replied, and what the oracle says about it.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::Arc,
};

use sluicegate_conformance::OracleSubject;
use sluicegate_core::{
    Decision, HoldOperation, MultiKeyDecision, Operation, PreparedPolicy, Timestamp,
};
use sluicegate_resp::{Value, decode};

use super::{
    clock,
    command::{Command, hold_id},
};
use crate::{
    event_log::EventLog,
    network::StreamEnd,
    oracle::{decide, decide_denied},
    plan::{Request, Together},
    recording::MarkKind,
    redis_model::{ScriptCall, ScriptOperation},
};

/// A key, as the oracle knows it.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) policy: PreparedPolicy,
    pub(super) state: OracleSubject,
    /// The request that could pass, and since when it could, in milliseconds.
    pub(super) ready: Option<(u64, u64)>,
}

/// A command that was sent and is not answered.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) command: Command,
    /// Bytes of the connection up to its end.
    end: usize,
    /// If it waits: its place among all, and its deadline.
    pub(super) waiting: Option<(u64, Timestamp)>,
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    client: usize,
    pub(super) sent: VecDeque<Sent>,
    /// Bytes: sent by the client, read by the server, offered by it, accepted by the network, received by the client.
    bytes_sent: usize,
    read: usize,
    offered: usize,
    accepted: usize,
    received: usize,
    /// What was offered and is an incomplete reply.
    undecoded: Vec<u8>,
    /// Keys and ids of the holds that end with it.
    holds: BTreeSet<(usize, u64)>,
    /// Whether the server has closed it.
    pub(super) has_ended: bool,
    /// Whether the client does not read any more.
    is_left: bool,
    /// The end of what the client sends, and since when it has arrived, in milliseconds.
    pub(super) end: Option<StreamEnd>,
    pub(super) gone_since: Option<u64>,
}

/// Everything that is known about a run.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) keys: Vec<Key>,
    pub(super) connections: Vec<Connection>,
    pub(super) log: Arc<EventLog>,
    /// Requests that have begun to wait.
    pub(super) arrivals: u64,
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
    pub(super) fn open(&mut self, client: usize, end: StreamEnd) -> usize {
        self.connections.push(Connection { client, end: Some(end), ..Connection::default() });
        self.connections.len() - 1
    }

    /// The client sends a command of so many bytes.
    pub(super) fn send(&mut self, number: usize, command: Command, bytes: usize) {
        self.log.add(format_args!("connection {number}: {command:?}"));
        let connection = &mut self.connections[number];
        connection.bytes_sent += bytes;
        let end = connection.bytes_sent;
        connection.sent.push_back(Sent { command, end, waiting: None });
    }

    /// The client has received bytes.
    pub(super) fn received(&mut self, number: usize, bytes: usize) {
        self.connections[number].received += bytes;
    }

    /// The client has left, or lost, the connection.
    pub(super) fn left(&mut self, number: usize) {
        self.connections[number].is_left = true;
    }

    /// The server has read bytes.
    pub(super) fn read(&mut self, number: usize, bytes: usize) {
        self.connections[number].read += bytes;
        self.begin_to_wait(number);
    }

    /// The network has accepted bytes of the server.
    pub(super) fn accepted(&mut self, number: usize, bytes: usize) {
        self.connections[number].accepted += bytes;
        self.begin_to_wait(number);
    }

    /// A command that may wait does so once it was read and all replies before it are written.
    fn begin_to_wait(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        let (read, is_written) = (connection.read, connection.accepted == connection.offered);
        if let Some(Sent { command: Command::Wait { timeout, .. }, end, waiting }) =
            connection.sent.front_mut()
            && is_written
            && read >= *end
            && waiting.is_none()
        {
            self.arrivals += 1;
            let timeout = std::time::Duration::from_millis(*timeout);
            *waiting = Some((self.arrivals, clock::now() + timeout));
        }
    }

    /// The server wants to write bytes, from the first that was not accepted on.
    pub(super) fn offered(&mut self, number: usize, bytes: &[u8]) {
        let connection = &mut self.connections[number];
        let known = connection.offered - connection.accepted;
        let new = bytes.get(known..).unwrap_or_default();
        connection.offered += new.len();
        connection.undecoded.extend_from_slice(new);
        loop {
            let connection = &mut self.connections[number];
            match decode(&connection.undecoded) {
                Ok(Some((value, length))) => {
                    connection.undecoded.drain(..length);
                    self.replied(number, &value);
                }
                Ok(None) => return,
                Err(error) => {
                    return self.violate(format_args!("protocol: connection {number}: {error}"));
                }
            }
        }
    }

    fn replied(&mut self, number: usize, value: &Value) {
        let now = clock::now();
        self.log.add(format_args!("connection {number} gets {value:?} at {now}"));
        let connection = &mut self.connections[number];
        let (client, read) = (connection.client, connection.read);
        let Some(sent) = connection.sent.pop_front() else {
            return self
                .violate(format_args!("protocol: connection {number}: {value:?} to nothing"));
        };
        if read < sent.end {
            return self
                .violate(format_args!("protocol: {value:?} to a command that was not read"));
        }
        let kind = match integers(value).as_deref() {
            Some([1, ..]) => MarkKind::Allowed,
            Some(_) => MarkKind::Denied,
            None => MarkKind::Error,
        };
        self.log.mark((self.millis)(), client, kind);
        match &sent.command {
            Command::One { key, request } => self.check_one((number, *key), *request, value, now),
            Command::All { operation, takes } => self.check_all(*operation, takes, value, now),
            Command::Wait { key, cost, hold, .. } => {
                let is_allowed = self.check_waited(&sent, (*key, *cost, *hold), value, now);
                if let Some(hold) = hold
                    && hold.is_of_session
                    && is_allowed
                {
                    self.connections[number].holds.insert((*key, hold.id));
                }
            }
        }
    }

    fn check_one(
        &mut self,
        (number, key): (usize, usize),
        request: Request,
        value: &Value,
        now: Timestamp,
    ) {
        let id = request.hold_id();
        let Key { policy, state, .. } = &mut self.keys[key];
        let call = ScriptCall { policy: policy.policy(), operation: request.operation(&id) };
        let expected = decide(state, call, now);
        let is_right = match request {
            Request::Reset => matches!(value, Value::Integer(0 | 1)),
            _ => agrees(value, &expected),
        };
        if !is_right {
            self.violate(format_args!(
                "exactness: {request} of key{key} at {now}: {value:?}, but the oracle decides {:?}",
                expected.map(|it| it.to_integers())
            ));
        }
        if let Request::Settle(id, _) = request
            && !matches!(value, Value::Error(_))
        {
            self.connections[number].holds.remove(&(key, id));
        }
    }

    fn check_all(
        &mut self,
        operation: Together,
        takes: &[(usize, u32)],
        value: &Value,
        now: Timestamp,
    ) {
        let id = if let Together::Hold(id, _) = operation { hold_id(id) } else { Vec::new() };
        let on_key = |cost| match operation {
            Together::Hold(_, ttl) => {
                let ttl = Some(std::time::Duration::from_millis(ttl));
                ScriptOperation::OnHold(HoldOperation::Hold { id: &id, cost, ttl })
            }
            Together::Take | Together::Peek => ScriptOperation::OnKey(Operation::Take(cost)),
        };
        let mut after = Vec::new();
        for decides in [decide, decide_denied] {
            after.clear();
            for &(key, cost) in takes {
                let Key { policy, state, .. } = &self.keys[key];
                let mut state = state.clone();
                let call = ScriptCall { policy: policy.policy(), operation: on_key(cost) };
                let decision = decides(&mut state, call, now);
                after.push((key, state, decision));
            }
            if after.iter().all(|it| it.2.as_ref().is_ok_and(Decision::allowed)) {
                break;
            }
        }
        let decisions: Result<Vec<_>, _> = after.iter().map(|it| it.2.clone()).collect();
        let expected = decisions.ok().and_then(MultiKeyDecision::of);
        let is_right = match (value, &expected) {
            (Value::Array(values), Some(expected)) => {
                let first = values.first().and_then(integers).unwrap_or_default();
                let each = expected.each.iter().map(|it| Some(it.to_integers().to_vec()));
                first.starts_with(&expected.decision.to_integers())
                    && first.get(7).copied() == i64::try_from(expected.key).ok()
                    && values.iter().skip(1).map(integers).eq(each)
            }
            (Value::Error(_), None) => return,
            _ => false,
        };
        if !is_right {
            return self.violate(format_args!(
                "exactness: {operation:?} of {takes:?} at {now}: {value:?}, but the oracle decides {expected:?}"
            ));
        }
        for (key, state, _) in after {
            self.keys[key].state = state;
        }
    }

    /// The server has closed a connection: the holds that end with it are settled.
    pub(super) fn ended(&mut self, number: usize) {
        let now = clock::now();
        let connection = &mut self.connections[number];
        connection.has_ended = true;
        let holds = std::mem::take(&mut connection.holds);
        self.log.add(format_args!("connection {number} ends with {holds:?}"));
        for (key, id) in holds {
            let Key { policy, state, .. } = &mut self.keys[key];
            let settle = HoldOperation::Settle { id: &hold_id(id), used: Some(0) };
            let operation = ScriptOperation::OnHold(settle);
            // It may have expired.
            let _ = decide(state, ScriptCall { policy: policy.policy(), operation }, now);
        }
    }

    /// Whether every command is answered, of clients that read.
    pub(super) fn is_idle(&self) -> bool {
        let is_idle = |it: &Connection| it.is_left || it.has_ended || it.sent.is_empty();
        self.connections.iter().all(is_idle)
    }

    /// Checks that every client that reads has received what was offered to it.
    pub(super) fn check_received(&mut self) {
        let lacks = |it: &Connection| {
            !it.is_left && (it.has_ended || !it.sent.is_empty() || it.received != it.offered)
        };
        if let Some(number) = self.connections.iter().position(lacks) {
            let connection = format!("{:?}", self.connections[number]);
            self.violate(format_args!("liveness: connection {number} lacks replies: {connection}"));
        }
    }
}

/// Whether a reply is this decision, or both are errors.
pub(super) fn agrees(value: &Value, expected: &Result<Decision, String>) -> bool {
    match (value, expected) {
        (Value::Error(_), Err(_)) => true,
        (value, Ok(expected)) => integers(value).as_deref() == Some(&expected.to_integers()),
        _ => false,
    }
}

/// The integers of a decision.
pub(super) fn integers(value: &Value) -> Option<Vec<i64>> {
    let Value::Array(values) = value else { return None };
    values.iter().map(|it| if let Value::Integer(it) = it { Some(*it) } else { None }).collect()
}
