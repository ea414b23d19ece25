//! Connections: listeners, TLS, permits for clients, and the workers that serve them.
//!
//! A protocol is a [`protocol::Protocol`] and a [`worker::Service`] for each worker; nothing here knows
//! which protocols there are.

use std::time::Duration;

pub(crate) mod clients;
pub(crate) mod incidents;
pub(crate) mod listen;
pub(crate) mod protocol;
pub(crate) mod secret;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod web;
pub(crate) mod worker;

/// How long a closed client may take to read the last replies.
pub(crate) const LINGER: Duration = Duration::from_millis(500);
/// Approximate memory of an idle connection, in bytes; it is not reserved.
pub(crate) const CONNECTION_BYTES: usize = 3 * 1024;
