//! TLS for a port, from files.

use std::{io, path::Path, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::WebPkiClientVerifier,
};

use sluicegate_commands::plain_error;

use crate::{TlsConfig, net::protocol::Protocol};

/// The TLS configuration of a port, for TLS 1.2 and 1.3.
pub(crate) fn read(config: &TlsConfig, protocol: &Protocol) -> io::Result<Arc<ServerConfig>> {
    let settings = protocol.tls_settings;
    let [cert, key, client_ca] = ["cert", "key", "client-ca"].map(|it| format!("{settings}-{it}"));
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(&client_ca, path)? {
                roots.add(authority).map_err(|error| invalid(&client_ca, path, error))?;
            }
            let roots = Arc::new(roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|error| invalid(&client_ca, path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let certificates = certificates(&cert, &config.cert)?;
    let private = PrivateKeyDer::from_pem_file(&config.key)
        .map_err(|error| unreadable(&key, &config.key, error, "a private key"))?;
    let made = builder.with_single_cert(certificates, private);
    let mut made = made.map_err(|error| {
        let key = config.key.display();
        invalid(&cert, &config.cert, format!("it does not match the key {key} ({error})"))
    })?;
    made.alpn_protocols = protocol.alpn.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(made))
}

fn certificates(setting: &str, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> =
        certificates.map_err(|error| unreadable(setting, path, error, "a certificate"))?;
    if certificates.is_empty() {
        return Err(invalid(setting, path, "expected a certificate in PEM"));
    }
    Ok(certificates)
}

fn unreadable(setting: &str, path: &Path, error: pem::Error, expected: &str) -> io::Error {
    match error {
        pem::Error::Io(error) => {
            let text = format!("cannot read {setting} {}: {}", path.display(), plain_error(&error));
            io::Error::new(error.kind(), text)
        }
        _ => invalid(setting, path, format!("expected {expected} in PEM")),
    }
}

fn invalid(setting: &str, path: &Path, reason: impl std::fmt::Display) -> io::Error {
    let text = format!("invalid {setting} `{}`: {reason}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
