//! Events decided by a server with `--test-clock`, with many commands in flight.

use anyhow::Context;
use sluicegate_core::{Policy, Timestamp};
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
    /// The default policy as a string.
    policy: Option<String>,
    commands: Vec<u8>,
    pending: Vec<PendingEvent>,
}

/// An event without a reply yet.
#[derive(Debug)]
struct PendingEvent {
    line: u64,
    time: Timestamp,
    key: Vec<u8>,
    cost: u32,
    policy: Vec<u8>,
    kind: Kind,
}

impl Remote {
    pub(super) fn new(client: Client, policy: Option<&Policy>) -> Self {
        let policy = policy.map(ToString::to_string);
        Self { client, policy, commands: Vec::new(), pending: Vec::new() }
    }

    pub(super) fn decide(&mut self, event: &Event<'_>, lane: &mut Lane) -> anyhow::Result<()> {
        let policy = match (event.policy, &self.policy) {
            (b"", Some(default)) => default.as_bytes(),
            (b"", None) => {
                self.finish(lane)?;
                let (line, fault) = (event.line, Box::new(Fault::NoPolicy));
                return Err(TraceError::Line { line, fault }.into());
            }
            (policy, _) => policy,
        };
        let time = event.time.as_micros().to_string();
        let cost = event.cost.to_string();
        let (time, cost) = (time.as_bytes(), cost.as_bytes());
        let (name, cost): (&[u8], &[u8]) = match event.kind {
            Kind::Take => (b"SG.TAKE", cost),
            Kind::Peek => (b"SG.PEEK", cost),
            Kind::Charge => (b"SG.CHARGE", cost),
            Kind::Refund => (b"SG.REFUND", cost),
            Kind::Reset => {
                // Returns whether there was state; the following peek returns the decision.
                encode_command(&[b"SG.RESET", event.key, b"AT", time], &mut self.commands);
                (b"SG.PEEK", b"0")
            }
        };
        encode_command(&[name, event.key, policy, b"COST", cost, b"AT", time], &mut self.commands);
        self.pending.push(PendingEvent {
            line: event.line,
            time: event.time,
            key: event.key.to_vec(),
            cost: event.cost,
            policy: event.policy.to_vec(),
            kind: event.kind,
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
            let PendingEvent { line, time, ref key, cost, ref policy, kind } = event;
            let at_line = || format!("line {line}");
            if kind == Kind::Reset {
                self.client.receive().with_context(at_line)?;
            }
            let reply = self.client.receive().with_context(at_line)?;
            let decision = decision(&reply).with_context(at_line)?;
            lane.add(&Event { line, time, key, cost, policy, kind }, &decision)?;
        }
        Ok(())
    }
}
