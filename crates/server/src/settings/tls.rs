//! The settings of TLS.

use std::path::PathBuf;

/// The files of TLS, in PEM.
///
/// ```
/// use sluicegate_server::TlsConfig;
///
/// let tls = TlsConfig {
///     cert: "/etc/sluicegate/server.crt".into(),
///     key: "/etc/sluicegate/server.key".into(),
///     client_ca: None,
/// };
/// # let _ = tls;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate of the server, and its intermediate certificates.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of client certificates; `None`: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}
