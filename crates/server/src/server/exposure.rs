//! Warnings and errors at the start about ports without a secret.

use std::{io, net::SocketAddr};

/// A port that clients can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExposedPort {
    /// The name of its protocol.
    pub(crate) protocol: &'static str,
    pub(crate) address: SocketAddr,
    /// Whether clients need a secret: a password, a token or a certificate.
    pub(crate) has_secret: bool,
}

/// Checks that other machines can reach no port without a secret.
///
/// # Errors
/// They can.
pub(crate) fn require_secrets(ports: &[ExposedPort]) -> io::Result<()> {
    let exposed = port_list(ports.iter().filter(|it| it.is_exposed()));
    if exposed.is_empty() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "--require-secrets is set, and these ports beyond loopback have no secret: {exposed}; set --requirepass, \
             --http-token or client certificates, listen on 127.0.0.1, or switch them off (--http off, --grpc off)"
        ),
    ))
}

/// Warns about ports that other machines can reach without a secret, and about those that a configured
/// password (`requirepass`) does not protect.
pub(crate) fn warn(ports: &[ExposedPort], requirepass: bool) {
    let exposed = port_list(ports.iter().filter(|it| it.is_exposed()));
    if !exposed.is_empty() {
        tracing::warn!(
            "listening beyond loopback without a secret: {exposed}; anyone who can reach these ports can read, charge \
             and reset any key: set --requirepass, --http-token or client certificates, or listen on 127.0.0.1"
        );
    }
    let open = port_list(ports.iter().filter(|it| !it.has_secret));
    if requirepass && !open.is_empty() {
        tracing::warn!(
            "--requirepass protects only the RESP port; these need no secret: {open}; set --http-token, \
             require client certificates, or switch them off (--http off, --grpc off)"
        );
    }
}

impl ExposedPort {
    /// Whether other machines can reach it without a secret.
    fn is_exposed(&self) -> bool {
        !self.has_secret && !self.address.ip().is_loopback()
    }
}

fn port_list<'a>(ports: impl Iterator<Item = &'a ExposedPort>) -> String {
    let ports: Vec<_> = ports.map(|it| format!("{} at {}", it.protocol, it.address)).collect();
    ports.join(", ")
}
