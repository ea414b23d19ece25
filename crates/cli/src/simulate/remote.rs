//! Events decided by a server that takes the time from its clients, many in flight at once.

use anyhow::Context;
use sluicegate_core::{Policy, Timestamp};
use sluicegate_resp::encode_command;
use sluicegate_simulator::{Event, Fault, Kind, TraceError};

use super::Sink;
use crate::client::{Client, decision};

/// Most commands in flight: their replies fit into the buffers of any socket, so that nobody waits
/// for a reader while we still write.
const MOST_EVENTS: usize = 200;
/// Most bytes in flight.
const MOST_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Remote {
    client: Client,
    /// The text of the default policy.
    policy: Option<String>,
    commands: Vec<u8>,
    asked: Vec<Asked>,
}

/// An event that is not answered yet.
#[derive(Debug)]
struct Asked {
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
        Self { client, policy, commands: Vec::new(), asked: Vec::new() }
    }

    pub(super) fn ask(&mut self, event: &Event<'_>, sink: &mut impl Sink) -> anyhow::Result<()> {
        let policy = match (event.policy, &self.policy) {
            (b"", Some(default)) => default.as_bytes(),
            (b"", None) => {
                self.finish(sink)?;
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
                // Tells whether there was anything; how the key then stands is asked behind it.
                encode_command(&[b"SG.RESET", event.key, b"AT", time], &mut self.commands);
                (b"SG.PEEK", b"0")
            }
        };
        encode_command(&[name, event.key, policy, b"COST", cost, b"AT", time], &mut self.commands);
        self.asked.push(Asked {
            line: event.line,
            time: event.time,
            key: event.key.to_vec(),
            cost: event.cost,
            policy: event.policy.to_vec(),
            kind: event.kind,
        });
        if self.asked.len() >= MOST_EVENTS || self.commands.len() >= MOST_BYTES {
            self.finish(sink)?;
        }
        Ok(())
    }

    /// Sends what is left and waits for the answers to all.
    pub(super) fn finish(&mut self, sink: &mut impl Sink) -> anyhow::Result<()> {
        self.client.send(&self.commands)?;
        self.commands.clear();
        for asked in self.asked.drain(..) {
            let Asked { line, time, ref key, cost, ref policy, kind } = asked;
            let at_line = || format!("line {line}");
            if kind == Kind::Reset {
                self.client.receive().with_context(at_line)?;
            }
            let reply = self.client.receive().with_context(at_line)?;
            let decision = decision(&reply).with_context(at_line)?;
            sink.add(&Event { line, time, key, cost, policy, kind }, &decision)?;
        }
        Ok(())
    }
}
