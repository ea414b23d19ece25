//! The part of a plan that only a server of Sluicegate has, and its text.

use std::fmt;

use anyhow::{Result, bail};

use crate::words::Words;

/// A server of Sluicegate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    /// Bytes of replies that a client may leave unread before the server cannot write.
    pub(crate) unread: usize,
    /// Whether the server stops after the last step, while requests wait.
    pub(crate) stops: bool,
    /// Keys whose policies have names in the rules of the server.
    pub(crate) named: Vec<usize>,
    /// Bounds that clients reach; otherwise those of the default settings apply.
    pub(crate) bounds: Option<Bounds>,
}

/// Bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Maximum number of clients at a time.
    pub(crate) clients: usize,
    /// Maximum number of bytes that are buffered for all clients.
    pub(crate) bytes: usize,
}

impl ServerPlan {
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
}

impl fmt::Display for ServerPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unread, stops, named, bounds } = self;
        writeln!(formatter, "server {unread} {}", if *stops { "stop" } else { "drain" })?;
        if let Some(Bounds { clients, bytes }) = bounds {
            writeln!(formatter, "bounds {clients} {bytes}")?;
        }
        if named.is_empty() {
            return Ok(());
        }
        write!(formatter, "named")?;
        named.iter().try_for_each(|number| write!(formatter, " {number}"))?;
        writeln!(formatter)
    }
}
