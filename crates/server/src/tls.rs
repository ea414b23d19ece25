//! TLS for a port, from files.

use std::{io, path::Path, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};

use crate::{TlsConfig, face::Face};

/// How to answer the first words of a client of `face`, in TLS 1.2 or 1.3.
pub(crate) fn read(config: &TlsConfig, face: Face) -> io::Result<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| told(path, error))?;
            }
            let roots = Arc::new(roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| told(path, error))?)
        }
    };
    let key =
        PrivateKeyDer::from_pem_file(&config.key).map_err(|error| told(&config.key, error))?;
    let made = builder.with_single_cert(certificates(&config.cert)?, key);
    let mut made = made.map_err(|error| told(&config.cert, error))?;
    made.alpn_protocols = face.protocols().iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(made))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = certificates.map_err(|error| told(path, error))?;
    if certificates.is_empty() {
        return Err(told(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

fn told(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("tls: {}: {error}", path.display()))
}
