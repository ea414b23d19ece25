//! Connections: listeners, TLS, permits for clients, and the workers that serve them.
//!
//! A protocol is a [`protocol::Protocol`] and a [`worker::Service`] for each worker; nothing here knows
//! which protocols there are.

pub(crate) mod clients;
pub(crate) mod incidents;
pub(crate) mod listen;
pub(crate) mod protocol;
pub(crate) mod secret;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod web;
pub(crate) mod worker;
