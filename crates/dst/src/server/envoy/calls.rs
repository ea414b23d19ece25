//! The calls of a run, and what the oracle says about them.
//!
//! Which calls the server has decided is known, except those that it reads together with the end of their connection. From there
//! on, the server may have one of two histories, until a response or the metrics show which.

use std::{collections::BTreeMap, fmt, sync::Arc};

use anyhow::Result;
use sluicegate_core::Timestamp;

use super::{
    descriptors::RulePlan,
    frames::Frames,
    message::{Call, CallResponse},
    rule_states::{NEAR_LIMIT, RuleStates},
};
use crate::{
    event_log::EventLog,
    recording::MarkKind,
    server::{clock, metrics::Metrics, server_end::Observer},
};

/// More histories than this are not followed: nothing is checked any more.
const MAX_HISTORIES: usize = 64;

/// A call, by its connection and the stream of HTTP/2.
type CallId = (usize, u32);

/// A connection.
#[derive(Debug)]
struct Connection {
    client: usize,
    frames: Frames,
    /// The calls that were sent and have no response.
    sent: BTreeMap<u32, Call>,
    /// Whether the client has left it, or lost it.
    has_ended: bool,
}

/// One possible history of the server.
#[derive(Clone, Debug)]
struct History {
    rules: RuleStates,
    /// The calls that it has decided.
    decided: u64,
    /// The responses that are on their way.
    responses: BTreeMap<CallId, CallResponse>,
}

/// All calls of a run.
#[derive(Debug)]
pub(crate) struct Calls {
    connections: Vec<Connection>,
    histories: Vec<History>,
    log: Arc<EventLog>,
    millis: fn() -> u64,
    /// Whether the server stops, or may have too many histories: then nothing is known any more.
    is_unknown: bool,
    pub(crate) violation: Option<String>,
}

impl Calls {
    pub(crate) fn new(rules: &[RulePlan], log: Arc<EventLog>, millis: fn() -> u64) -> Result<Self> {
        let first =
            History { rules: RuleStates::new(rules)?, decided: 0, responses: BTreeMap::new() };
        Ok(Self {
            connections: Vec::new(),
            histories: vec![first],
            log,
            millis,
            is_unknown: false,
            violation: None,
        })
    }

    fn violate(&mut self, what: fmt::Arguments<'_>) {
        let millis = (self.millis)();
        self.violation.get_or_insert_with(|| format!("after {millis} ms: {what}"));
    }

    /// A new connection of a client. Returns its number.
    pub(super) fn open(&mut self, client: usize) -> usize {
        let (frames, sent) = (Frames::default(), BTreeMap::new());
        self.connections.push(Connection { client, frames, sent, has_ended: false });
        self.connections.len() - 1
    }

    /// A client sends a call.
    pub(super) fn send(&mut self, id: CallId, call: Call) {
        self.log.add(format_args!("call {id:?}: {call:?}"));
        self.connections[id.0].sent.insert(id.1, call);
    }

    /// The number of calls without a response.
    pub(super) fn unanswered(&self, number: usize) -> usize {
        self.connections[number].sent.len()
    }

    fn decide(&mut self, id: CallId, call: &Call, may_be_dropped: bool, now: Timestamp) {
        if self.is_unknown {
            return;
        }
        self.log.add(format_args!("call {id:?} is decided at {now}"));
        let without = may_be_dropped.then(|| self.histories.clone());
        for history in &mut self.histories {
            let response = history.rules.respond(call, now);
            history.responses.insert(id, response);
            history.decided += 1;
        }
        self.histories.extend(without.into_iter().flatten());
        self.is_unknown |= self.histories.len() > MAX_HISTORIES;
    }

    /// A client gets a response.
    pub(super) fn receive(&mut self, id: CallId, response: &CallResponse) {
        self.log.add(format_args!("call {id:?} gets {response:?}"));
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        let call = connection.sent.remove(&id.1);
        let kind = match response {
            Ok(each) if each.iter().any(|it| it.is_over) => MarkKind::Denied,
            Ok(_) => MarkKind::Allowed,
            Err(_) => MarkKind::Error,
        };
        self.log.mark((self.millis)(), connection.client, kind);
        if self.is_unknown {
            return;
        }
        let agrees = |expected: &CallResponse| match (response, expected) {
            (Ok(found), Ok(expected)) => found == expected,
            (Err(_), Err(_)) => true,
            _ => false,
        };
        let mut expected = Vec::new();
        self.histories.retain_mut(|history| {
            let of_history = history.responses.remove(&id);
            let is_right = of_history.as_ref().is_some_and(agrees);
            expected.extend((!is_right).then_some(of_history));
            is_right
        });
        if self.histories.is_empty() {
            self.is_unknown = true;
            self.violate(format_args!("exactness: {call:?}: {response:?}, not {expected:?}"));
        }
    }

    /// A connection has ended for its client: what it has not received does not arrive.
    pub(super) fn end(&mut self, number: usize) {
        self.connections[number].has_ended = true;
    }

    /// Whether every call has its response, as far as its client can get one.
    pub(crate) fn are_answered(&self) -> bool {
        self.connections.iter().all(|it| it.has_ended || it.sent.is_empty())
    }

    /// Checks that it is so.
    pub(crate) fn check_answered(&mut self) {
        let lacks = |it: &Connection| !it.has_ended && !it.sent.is_empty();
        if let Some(number) = self.connections.iter().position(lacks) {
            let sent = format!("{:?}", self.connections[number].sent);
            self.violate(format_args!(
                "liveness: calls of connection {number} lack a response: {sent}"
            ));
        }
    }

    /// The server stops: it does not decide all that it reads.
    pub(crate) const fn stop(&mut self) {
        self.is_unknown = true;
    }

    /// Checks the counters of the server. All calls that it has read are decided.
    pub(crate) fn check_metrics(&mut self, metrics: &Metrics) {
        let differences = |history: &History| {
            let mut differences = Vec::new();
            let mut check = |what: String, found: u64, expected: u64| {
                if found != expected {
                    differences.push(format!("{what}: {found}, not {expected}"));
                }
            };
            let requests = metrics.sum("sluicegate_requests_total", &[("protocol", "grpc")]);
            check("calls".to_owned(), requests, history.decided);
            for rule in history.rules.names() {
                for outcome in ["allowed", "denied", "shadow_denied", NEAR_LIMIT] {
                    let labels = [("rule", &*rule), ("outcome", outcome)];
                    let found = match outcome {
                        NEAR_LIMIT => metrics.sum("sluicegate_rule_near_limit_total", &labels[..1]),
                        _ => metrics.sum("sluicegate_rule_decisions_total", &labels),
                    };
                    check(
                        format!("{outcome} by {rule}"),
                        found,
                        history.rules.count(&rule, outcome),
                    );
                }
            }
            differences
        };
        if self.is_unknown {
            return;
        }
        let wrong: Vec<_> = self.histories.iter().map(differences).collect();
        if wrong.iter().all(|it| !it.is_empty()) {
            self.violate(format_args!("honesty: metrics: {wrong:?}"));
        }
    }
}

impl Observer for Calls {
    fn read(&mut self, number: usize, bytes: &[u8], ends_now: bool) {
        for stream in self.connections[number].frames.read(bytes) {
            let Some(call) = self.connections[number].sent.get(&stream).cloned() else {
                // The client has left.
                continue;
            };
            self.decide((number, stream), &call, ends_now, clock::now());
        }
    }
}
