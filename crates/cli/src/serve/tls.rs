//! Certificates of the listeners.

use std::path::PathBuf;

use clap::Args;
use sluicegate_server::{Config, TlsConfig};

#[derive(Args, Debug)]
pub(super) struct Tls {
    /// Certificate (PEM): --listen then accepts TLS only
    #[arg(long, value_name = "PATH")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "PATH")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities (PEM) at --listen
    #[arg(long, value_name = "PATH")]
    tls_client_ca: Option<PathBuf>,
    /// Certificate (PEM): --http then accepts TLS only
    #[arg(long, value_name = "PATH")]
    http_tls_cert: Option<PathBuf>,
    /// Private key of --http-tls-cert (PEM)
    #[arg(long, value_name = "PATH")]
    http_tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities (PEM) at --http
    #[arg(long, value_name = "PATH")]
    http_tls_client_ca: Option<PathBuf>,
    /// Certificate (PEM): --grpc then accepts TLS only
    #[arg(long, value_name = "PATH")]
    grpc_tls_cert: Option<PathBuf>,
    /// Private key of --grpc-tls-cert (PEM)
    #[arg(long, value_name = "PATH")]
    grpc_tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities (PEM) at --grpc
    #[arg(long, value_name = "PATH")]
    grpc_tls_client_ca: Option<PathBuf>,
}

impl Tls {
    pub(super) fn apply(self, config: &mut Config) {
        config.resp.tls = tls(self.tls_cert, self.tls_key, self.tls_client_ca);
        config.http.tls = tls(self.http_tls_cert, self.http_tls_key, self.http_tls_client_ca);
        config.envoy.tls = tls(self.grpc_tls_cert, self.grpc_tls_key, self.grpc_tls_client_ca);
    }
}

fn tls(
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Option<TlsConfig> {
    cert.zip(key).map(|(cert, key)| TlsConfig { cert, key, client_ca })
}
