//! The part of a plan that only a server of Sluicegate has, and its text.

use std::fmt;

use anyhow::{Result, bail, ensure};
use sluicegate_server::simulation::SimulatedProtocol;

use super::envoy::RulePlan;
use crate::words::Words;

/// A server of Sluicegate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    /// Bytes of replies that a client may leave unread before the server cannot write.
    pub(crate) unread: usize,
    /// Whether the server stops after the last step, while requests wait.
    pub(crate) stops: bool,
    /// Clients that speak HTTP. The others speak RESP.
    pub(crate) http: Vec<usize>,
    /// Keys whose policies have names in the rules of the server.
    pub(crate) named: Vec<usize>,
    /// Rules that count descriptors of Envoy.
    pub(crate) rules: Vec<RulePlan>,
    /// Bounds that clients reach; otherwise those of the default settings apply.
    pub(crate) bounds: Option<Bounds>,
}

/// Bounds of a server. Its clients then speak RESP alone: HTTP has clients and bytes beyond them, for health checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Maximum number of clients at a time.
    pub(crate) clients: usize,
    /// Maximum number of bytes that are buffered for all clients.
    pub(crate) bytes: usize,
}

impl ServerPlan {
    /// The protocol of a client.
    pub(super) fn protocol(&self, client: usize) -> SimulatedProtocol {
        if self.http.contains(&client) { SimulatedProtocol::Http } else { SimulatedProtocol::Resp }
    }

    /// Reads the rest of the line `server`.
    pub(crate) fn read(words: &mut Words<'_>) -> Result<Self> {
        let unread = words.number()?;
        let stops = match words.word()? {
            "stop" => true,
            "drain" => false,
            other => bail!("invalid `{other}`: expected `stop` or `drain`"),
        };
        Ok(Self { unread, stops, ..Self::default() })
    }

    /// Reads the rest of the line `named`.
    pub(crate) fn read_named(&mut self, words: &mut Words<'_>) -> Result<()> {
        self.named = words.numbers()?;
        Ok(())
    }

    /// Reads the rest of the line `bounds`.
    pub(crate) fn read_bounds(&mut self, words: &mut Words<'_>) -> Result<()> {
        let [clients, bytes] = words.numbers()?[..] else {
            bail!("expected the most clients and the most bytes");
        };
        self.bounds = Some(Bounds { clients, bytes });
        Ok(())
    }

    /// Reads the rest of the line `http`.
    pub(crate) fn read_http(&mut self, words: &mut Words<'_>) -> Result<()> {
        self.http = words.numbers()?;
        Ok(())
    }

    /// Whether its lines fit together.
    pub(crate) fn check(&self) -> Result<()> {
        let speaks_http = !self.http.is_empty() || !self.rules.is_empty();
        ensure!(
            self.bounds.is_none() || !speaks_http,
            "invalid `bounds`: expected a server without `http` and `rule`, for which they do not hold"
        );
        Ok(())
    }
}

impl fmt::Display for ServerPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unread, stops, http, named, rules, bounds } = self;
        writeln!(formatter, "server {unread} {}", if *stops { "stop" } else { "drain" })?;
        if let Some(Bounds { clients, bytes }) = bounds {
            writeln!(formatter, "bounds {clients} {bytes}")?;
        }
        for (word, numbers) in [("http", http), ("named", named)] {
            if numbers.is_empty() {
                continue;
            }
            write!(formatter, "{word}")?;
            numbers.iter().try_for_each(|number| write!(formatter, " {number}"))?;
            writeln!(formatter)?;
        }
        rules.iter().try_for_each(|rule| writeln!(formatter, "{rule}"))
    }
}
