//! Events decided by a server with `--test-clock`, with many commands in flight.

use std::time::Duration;

use anyhow::Context;
use sluicegate_core::{Policy, Timestamp, as_micros};
use sluicegate_resp::encode_command;
use sluicegate_simulator::{Event, Fault, Kind, TraceError};

use super::lane::Lane;
use crate::client::{Client, decision};

/// Maximum number of commands in flight. Their replies fit into the buffers of any socket, so that the server
/// never blocks on a client that still writes.
const MAX_EVENTS: usize = 200;
/// Maximum number of bytes in flight.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Remote {
    client: Client,
    /// The default policy, and the same as a string.
    policy: Option<(Policy, String)>,
    commands: Vec<u8>,
    pending: Vec<PendingEvent>,
}

/// An event without a reply yet.
#[derive(Debug)]
struct PendingEvent {
    line: u64,
    time: Timestamp,
    key: Vec<u8>,
    cost: Option<u32>,
    policy: Vec<u8>,
    kind: Kind,
    id: Vec<u8>,
    ttl: Option<Duration>,
}

impl Remote {
    pub(super) fn new(client: Client, policy: Option<&Policy>) -> Self {
        let policy = policy.map(|policy| (policy.clone(), policy.to_string()));
        Self { client, policy, commands: Vec::new(), pending: Vec::new() }
    }

    pub(super) fn decide(&mut self, event: &Event<'_>, lane: &mut Lane) -> anyhow::Result<()> {
        let (policy, kind) = match (event.policy, &self.policy) {
            (b"", Some((default, text))) => (text.as_bytes(), event.kind.under(default)),
            (b"", None) => {
                self.finish(lane)?;
                let (line, fault) = (event.line, Box::new(Fault::NoPolicy));
                return Err(TraceError::Line { line, fault }.into());
            }
            (policy, _) => (policy, event.kind),
        };
        encode_event(event, kind, policy, &mut self.commands);
        self.pending.push(PendingEvent {
            line: event.line,
            time: event.time,
            key: event.key.to_vec(),
            cost: event.cost,
            policy: event.policy.to_vec(),
            kind: event.kind,
            id: event.id.to_vec(),
            ttl: event.ttl,
        });
        if self.pending.len() >= MAX_EVENTS || self.commands.len() >= MAX_BYTES {
            self.finish(lane)?;
        }
        Ok(())
    }

    /// Sends the remaining commands, and waits for all replies.
    pub(super) fn finish(&mut self, lane: &mut Lane) -> anyhow::Result<()> {
        self.client.send(&self.commands)?;
        self.commands.clear();
        for event in self.pending.drain(..) {
            let PendingEvent { line, time, ref key, cost, ref policy, kind, ref id, ttl } = event;
            let at_line = || format!("line {line}");
            if kind == Kind::Reset {
                self.client.receive().with_context(at_line)?;
            }
            let reply = self.client.receive().with_context(at_line)?;
            let decision = decision(&reply).with_context(at_line)?;
            lane.add(&Event { line, time, key, cost, policy, kind, id, ttl }, &decision)?;
        }
        Ok(())
    }
}

/// Encodes the commands of an event of a kind under `policy`; the last returns the decision.
fn encode_event(event: &Event<'_>, kind: Kind, policy: &[u8], commands: &mut Vec<u8>) {
    let time = event.time.as_micros().to_string();
    let cost = Some(u64::from(event.cost.unwrap_or(0)));
    let ttl = event.ttl.map(as_micros);
    let (name, numbers) = match kind {
        Kind::Take | Kind::Start => ("SG.TAKE", [("COST", cost), ("TTL", None)]),
        Kind::Peek | Kind::End => ("SG.PEEK", [("COST", cost), ("TTL", None)]),
        Kind::Charge => ("SG.CHARGE", [("COST", cost), ("TTL", None)]),
        Kind::Refund => ("SG.REFUND", [("COST", cost), ("TTL", None)]),
        Kind::Reset => {
            // Returns whether there was state; the following peek returns the decision.
            encode_command(&[b"SG.RESET", event.key, b"AT", time.as_bytes()], commands);
            ("SG.PEEK", [("COST", Some(0)), ("TTL", None)])
        }
        Kind::Hold => ("SG.HOLD", [("COST", cost), ("TTL", ttl)]),
        Kind::Settle => ("SG.SETTLE", [("USED", event.cost.map(u64::from)), ("TTL", None)]),
        Kind::Renew => ("SG.RENEW", [("USED", None), ("TTL", ttl)]),
    };
    let numbers = numbers.map(|(option, value)| (option, value.map(|value| value.to_string())));
    let mut command = vec![name.as_bytes(), event.key, policy];
    if kind.has_id() {
        command.push(event.id);
    }
    for (option, value) in &numbers {
        if let Some(value) = value {
            command.extend([option.as_bytes(), value.as_bytes()]);
        }
    }
    command.extend([b"AT", time.as_bytes()]);
    encode_command(&command, commands);
}
