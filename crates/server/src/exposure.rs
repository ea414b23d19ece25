//! What is logged at the start about ports that need no secret.

use std::net::SocketAddr;

use crate::{Config, TlsConfig, face::Face, listen::Addresses};

/// Logs which ports can be reached from other machines without a secret, and which ones a password that
/// was given does not protect.
pub(crate) fn warn(config: &Config, addresses: &Addresses) {
    let open = open(config, addresses);
    let exposed: Vec<_> = open.iter().filter(|it| !it.1.ip().is_loopback()).collect();
    if !exposed.is_empty() {
        let ports: Vec<_> = exposed.iter().map(|it| shown(it.0, it.1)).collect();
        tracing::warn!(
            "listening beyond loopback without a secret: {}; anyone who can reach these ports can read, charge \
             and reset any key: set --requirepass, --http-token or client certificates, or listen on 127.0.0.1",
            ports.join(", ")
        );
    }
    let beside: Vec<_> = open.iter().filter(|it| it.0 != Face::Resp).collect();
    if config.requirepass.is_some() && !beside.is_empty() {
        let ports: Vec<_> = beside.iter().map(|it| shown(it.0, it.1)).collect();
        tracing::warn!(
            "--requirepass protects only the RESP port; these need no secret: {}; set --http-token, \
             require client certificates, or switch them off (--http off, --grpc off)",
            ports.join(", ")
        );
    }
}

/// The ports that ask for no secret.
fn open(config: &Config, addresses: &Addresses) -> Vec<(Face, SocketAddr)> {
    let has_ca = |tls: &Option<TlsConfig>| tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let open = [
        (Face::Resp, Some(addresses.resp), config.requirepass.is_some() || has_ca(&config.tls)),
        (Face::Http, addresses.http, config.http_token.is_some() || has_ca(&config.http_tls)),
        (Face::Grpc, addresses.grpc, has_ca(&config.grpc_tls)),
    ];
    let open = open.into_iter().filter(|(_, _, secret)| !secret);
    open.filter_map(|(face, address, _)| Some((face, address?))).collect()
}

fn shown(face: Face, address: SocketAddr) -> String {
    format!("{} at {address}", face.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_ports_are_those_without_a_secret() {
        let any = SocketAddr::from(([0, 0, 0, 0], 1));
        let addresses = Addresses { resp: any, http: Some(any), grpc: Some(any) };
        let faces = |config: &Config| -> Vec<_> {
            open(config, &addresses).into_iter().map(|(face, _)| face).collect()
        };
        let mut config = Config::default();
        assert_eq!(faces(&config), Face::ALL);
        config.requirepass = Some("x".into());
        config.http_token = Some("x".into());
        assert_eq!(faces(&config), [Face::Grpc]);
        config.grpc_tls =
            Some(TlsConfig { cert: "c".into(), key: "k".into(), client_ca: Some("a".into()) });
        assert_eq!(faces(&config), []);
        config.http_token = None;
        config.http_tls = Some(TlsConfig { cert: "c".into(), key: "k".into(), client_ca: None });
        assert_eq!(faces(&config), [Face::Http]);
    }
}
