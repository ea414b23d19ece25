//! A store over TLS: certificates are checked on both sides.

use sluicegate_core::{PreparedPolicy, Store, StoreError};
use std::{fs, path::PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, free_port};

use crate::servers::patient;

type Authority = CertifiedIssuer<'static, KeyPair>;

/// OpenSSL treats a certificate with the name of its authority as self-signed.
fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = called(&format!("authority of {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificates as files, until dropped.
pub(crate) struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        let name = format!("sluicegate-tls-{}-{}", std::process::id(), free_port());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes `NAME.ca`, and `NAME.crt` and `NAME.key` of a certificate from it for this host.
    fn write(&self, name: &str, authority: &Authority, purpose: ExtendedKeyUsagePurpose) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = called(name);
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        fs::write(self.path(&format!("{name}.ca")), authority.pem()).unwrap();
        fs::write(self.path(&format!("{name}.crt")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server that speaks TLS at the returned port, and plain text at its own.
fn server(files: &Files, clients: &str) -> (Server, u16) {
    let port = free_port();
    let server = Server::with(
        Engine::Redis70,
        &[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &files.text("server.crt"),
            "--tls-key-file",
            &files.text("server.key"),
            "--tls-ca-cert-file",
            &files.text("client.ca"),
            "--tls-auth-clients",
            clients,
        ],
    );
    (server, port)
}

/// A server that requires no client certificate; the authority of its own is in `server.ca`.
pub(crate) fn simple_server() -> (Server, Files, u16) {
    let files = Files::new();
    let [servers, clients] = ["servers", "clients"].map(authority);
    files.write("server", &servers, ExtendedKeyUsagePurpose::ServerAuth);
    files.write("client", &clients, ExtendedKeyUsagePurpose::ClientAuth);
    let (server, port) = server(&files, "no");
    (server, files, port)
}

#[tokio::test]
async fn tls_certificates_are_checked_on_both_sides() {
    let files = Files::new();
    let [servers, clients, strangers] = ["servers", "clients", "strangers"].map(authority);
    files.write("server", &servers, ExtendedKeyUsagePurpose::ServerAuth);
    files.write("client", &clients, ExtendedKeyUsagePurpose::ClientAuth);
    files.write("stranger", &strangers, ExtendedKeyUsagePurpose::ClientAuth);
    let options = |ca: &str, client: Option<&str>| {
        let mut options: Options = patient();
        options.tls.ca = Some(files.path(&format!("{ca}.ca")));
        options.tls.client = client
            .map(|name| (files.path(&format!("{name}.crt")), files.path(&format!("{name}.key"))));
        options
    };
    let policy: PreparedPolicy = "gcra:9/1h".parse().unwrap();
    let take = async |url: &str, options: Options| {
        let store = RedisStore::connect_with(url, options).await?;
        store.take(b"k", &policy, 1).await.map(|answer| answer.remaining)
    };

    let (_open, port) = server(&files, "no");
    let url = format!("rediss://127.0.0.1:{port}/");
    assert_eq!(take(&url, options("server", None)).await, Ok(8));
    let error = take(&url, options("stranger", None)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(_)), "{error}");
    println!("figure: an unknown authority: {error}");
    // The system's authorities do not include this one either.
    assert!(take(&url, patient()).await.is_err());

    let (closed, port) = server(&files, "yes");
    let url = format!("rediss://127.0.0.1:{port}/");
    assert_eq!(take(&url, options("server", Some("client"))).await, Ok(8));
    assert!(take(&url, options("server", None)).await.is_err(), "it shows none");
    assert!(take(&url, options("server", Some("stranger"))).await.is_err());
    // Plain text where TLS is spoken, and the other way about.
    assert!(take(&format!("redis://127.0.0.1:{port}/"), patient()).await.is_err());
    let plain = format!("rediss://127.0.0.1:{}/", closed.port());
    assert!(take(&plain, options("server", Some("client"))).await.is_err());

    let error = take(&url, options("nobody", None)).await.unwrap_err();
    assert!(error.to_string().contains("nobody.ca"), "the file is named: {error}");
}
