//! The scripts that are compared, and the sizes of a run.

use std::{io, time::Duration};

use sluicegate_core::{Operation, Policy, Timestamp};
use sluicegate_redis::script::Plan;
use sluicegate_resp::Value;

use super::wire::{Command, Connection, Span, load};
use crate::{report::median, resp::servers::Server};

/// Sizes of a run.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) rounds: usize,
    pub(super) keys: u64,
    pub(super) measured: Duration,
}

pub(super) const FULL: Sizes =
    Sizes { rounds: 5, keys: 1_000_000, measured: Duration::from_millis(1200) };
pub(super) const QUICK: Sizes =
    Sizes { rounds: 1, keys: 2000, measured: Duration::from_millis(30) };
/// Connections, and commands in flight on each.
pub(super) const CONNECTIONS: usize = 8;
pub(super) const PIPELINE: usize = 16;

/// A script on a server, and its arguments.
pub(super) struct Subject {
    pub(super) command: Command,
    pub(super) figures: Vec<f64>,
}

impl Subject {
    pub(super) fn new(
        server: &Server,
        script: &str,
        key: &str,
        arguments: &[&[u8]],
    ) -> io::Result<Self> {
        let mut connection = Connection::new(server.address)?;
        let loaded = connection.call(&[b"SCRIPT", b"LOAD", script.as_bytes()])?;
        let Value::Bulk(sha1) = loaded else {
            return Err(io::Error::other("SCRIPT LOAD returned no SHA-1"));
        };
        let command = Command::new(&[b"EVALSHA", &sha1, b"1"], key, arguments);
        Ok(Self { command, figures: Vec::new() })
    }

    /// The script of Sluicegate for a policy.
    pub(super) fn ours(server: &Server, policy: &str, key: &str) -> io::Result<Self> {
        let policy: Policy = policy.parse().map_err(io::Error::other)?;
        let plan = Plan::new(&policy);
        let arguments = plan.arguments(Operation::Take(1), Timestamp::EPOCH, None, &[]);
        let arguments = arguments.map_err(io::Error::other)?;
        let words: Vec<_> = arguments.iter().collect();
        Self::new(server, plan.script().text(), key, &words)
    }

    /// Calls the script `times` times for each key.
    pub(super) fn fill(&self, server: &Server, keys: u64, times: u64) -> io::Result<()> {
        load(server.address, &self.command, CONNECTIONS, PIPELINE, keys, Span::Keys(keys * times))
            .map(drop)
    }

    pub(super) fn median(&self) -> f64 {
        median(&self.figures)
    }
}
