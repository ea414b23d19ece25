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

/// Warns about ports that other machines can reach without a secret, and about those that a configured
/// password (`requirepass`) does not protect.
///
/// # Errors
/// With `require_secrets`, other machines can reach a port without a secret.
pub(crate) fn check(
    ports: &[ExposedPort],
    requirepass: bool,
    require_secrets: bool,
) -> io::Result<()> {
    let open: Vec<_> = ports.iter().filter(|it| !it.has_secret).collect();
    let exposed: Vec<_> = open.iter().filter(|it| !it.address.ip().is_loopback()).collect();
    if !exposed.is_empty() {
        let ports: Vec<_> = exposed.iter().map(|it| shown(it)).collect();
        if require_secrets {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "listening beyond loopback without a secret: {}; set --requirepass, --http-token or client \
                     certificates, listen on 127.0.0.1, or allow it with --require-secrets=false",
                    ports.join(", ")
                ),
            ));
        }
        tracing::warn!(
            "listening beyond loopback without a secret: {}; anyone who can reach these ports can read, charge \
             and reset any key: set --requirepass, --http-token or client certificates, or listen on 127.0.0.1",
            ports.join(", ")
        );
    }
    if requirepass && !open.is_empty() {
        let ports: Vec<_> = open.iter().map(|it| shown(it)).collect();
        tracing::warn!(
            "--requirepass protects only the RESP port; these need no secret: {}; set --http-token, \
             require client certificates, or switch them off (--http off, --grpc off)",
            ports.join(", ")
        );
    }
    Ok(())
}

fn shown(port: &ExposedPort) -> String {
    format!("{} at {}", port.protocol, port.address)
}
