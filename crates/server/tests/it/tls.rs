//! TLS: certificates are checked, and plain text is rejected.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};
use sluicegate_server::{Config, Server, TlsConfig};
use sluicegate_testing::{SetOnDrop, eventually_true};

use crate::harness::{Running, TEST_TIMEOUT, TempDir, any_port, config, size};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for `localhost`, and its key.
fn certificate(
    authority: &Authority,
    purpose: ExtendedKeyUsagePurpose,
) -> (rcgen::Certificate, KeyPair) {
    certificate_until(authority, purpose, 4096)
}

/// The same, that expires at the begin of this year.
fn certificate_until(
    authority: &Authority,
    purpose: ExtendedKeyUsagePurpose,
    year: i32,
) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.extended_key_usages = vec![purpose];
    params.not_after = date_time_ymd(year, 1, 1);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// A server whose certificate is from `authority`, for all protocols.
fn server(folder: &TempDir, authority: &Authority, client_ca: Option<&Authority>) -> Running {
    server_with(folder, authority, client_ca, |_| {})
}

fn server_with(
    folder: &TempDir,
    authority: &Authority,
    client_ca: Option<&Authority>,
    configure: impl FnOnce(&mut Config),
) -> Running {
    let (certificate, key) = certificate(authority, ExtendedKeyUsagePurpose::ServerAuth);
    let files = [("cert", certificate.pem()), ("key", key.serialize_pem())];
    for (name, text) in files {
        fs::write(folder.file(name), text).unwrap();
    }
    if let Some(authority) = client_ca {
        fs::write(folder.file("ca"), authority.pem()).unwrap();
    }
    let tls = TlsConfig {
        cert: folder.file("cert"),
        key: folder.file("key"),
        client_ca: client_ca.map(|_| folder.file("ca")),
    };
    Running::with(|config| {
        (config.http.address, config.envoy.address) = (Some(any_port()), Some(any_port()));
        (config.http.tls, config.envoy.tls) = (Some(tls.clone()), Some(tls.clone()));
        config.resp.tls = Some(tls);
        configure(config);
    })
}

type Identity = (rcgen::Certificate, KeyPair);

/// A connection over TLS, for a client that trusts `authority` and speaks these protocols.
fn connect(
    address: SocketAddr,
    authority: &Authority,
    identity: Option<Identity>,
    protocols: &[&str],
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    Ok(StreamOwned::new(connection, TcpStream::connect(address)?))
}

/// The replies to `text` and `QUIT` over TLS, for a client that trusts `authority`.
fn exchange(
    server: &Running,
    authority: &Authority,
    identity: Option<Identity>,
    text: &str,
) -> io::Result<String> {
    let mut stream = connect(server.address, authority, identity, &[])?;
    stream.write_all(format!("{text}QUIT\r\n").as_bytes())?;
    let mut received = String::new();
    stream.read_to_string(&mut received)?;
    Ok(received)
}

/// The response to a health check over HTTP/1.1 at `address`.
fn health(
    address: SocketAddr,
    authority: &Authority,
    identity: Option<Identity>,
) -> io::Result<String> {
    let mut stream = connect(address, authority, identity, &["http/1.1"])?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut received = String::new();
    stream.read_to_string(&mut received)?;
    Ok(received)
}

/// Whether HTTP/2 is agreed on at `address`, and spoken.
fn speaks_two(address: SocketAddr, authority: &Authority, protocols: &[&str]) -> io::Result<bool> {
    let mut stream = connect(address, authority, None, protocols)?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    // Settings come first.
    Ok(stream.conn.alpn_protocol() == Some(b"h2") && head[3] == 4)
}

#[test]
fn tls_http_and_grpc_negotiate_alpn() {
    let (folder, ours, other) = (TempDir::new(), authority(), authority());
    let server = server(&folder, &ours, None);
    let (http, grpc) = (server.http.unwrap(), server.grpc.unwrap());
    let received = health(http, &ours, None).unwrap();
    assert!(
        received.starts_with("HTTP/1.1 200 OK\r\n") && received.ends_with("ok\n"),
        "{received}"
    );
    for address in [http, grpc] {
        assert!(speaks_two(address, &ours, &["h2", "http/1.1"]).unwrap(), "{address}");
        assert!(speaks_two(address, &other, &["h2"]).is_err(), "a stranger certifies it");
        // Plain text gets no answer in plain text: an alert of TLS, if anything.
        let mut plain = TcpStream::connect(address).unwrap();
        plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut received = Vec::new();
        let _ = plain.read_to_end(&mut received);
        assert!(received.is_empty() || received[0] == 21, "{}", received.escape_ascii());
    }
    // gRPC is spoken over HTTP/2 only.
    assert!(health(grpc, &ours, None).is_err());
}

#[test]
fn tls_client_that_trusts_the_authority_is_served() {
    let (folder, ours, other) = (TempDir::new(), authority(), authority());
    let server = server(&folder, &ours, None);
    let received = exchange(&server, &ours, None, "PING\r\nCL.THROTTLE k 0 1 3600\r\n").unwrap();
    assert_eq!(received, "+PONG\r\n*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n+OK\r\n");
    let long = "PING\r\n".repeat(20_000);
    let received = exchange(&server, &ours, None, &long).unwrap();
    assert_eq!(received.len(), "+PONG\r\n".len() * 20_000 + "+OK\r\n".len());

    let error = exchange(&server, &other, None, "PING\r\n").unwrap_err();
    assert!(error.to_string().starts_with("invalid peer certificate"), "{error}");

    // Plain text gets no answer in plain text: an alert of TLS, if anything.
    let mut plain = server.connect();
    plain.send("PING\r\n");
    let mut received = Vec::new();
    let _ = plain.stream.read_to_end(&mut received);
    assert!(received.is_empty() || received[0] == 21, "{}", received.escape_ascii());

    let failures = |count: &str| {
        let info = exchange(&server, &ours, None, "INFO stats\r\n").unwrap();
        info.lines().any(|line| line == format!("tls_failures:{count}"))
    };
    eventually_true("two failures are counted", || failures("2"));
}

/// Replies that the client takes need no memory of the budget, as those without TLS.
#[test]
fn tls_replies_while_the_buffer_memory_is_used_up_are_sent() {
    let (folder, ours) = (TempDir::new(), authority());
    let server = server_with(&folder, &ours, None, |config| config.max_buffer_memory = 64 << 10);
    let info = |name: &str| -> u64 {
        let info = exchange(&server, &ours, None, "INFO\r\n").unwrap();
        let found = info.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_else(|| panic!("no {name} in {info}")).parse().unwrap()
    };
    let mut waiting = Vec::new();
    while info("buffer_rejections") == 0 {
        let number = waiting.len();
        let key = format!("{number}{}", "k".repeat(3_000));
        let take = format!("SG.TAKE {key} gcra:1/1h\r\n");
        let wait = format!("SG.WAIT {key} gcra:1/1h TIMEOUT 4000000000000\r\n");
        let mut stream = connect(server.address, &ours, None, &[]).unwrap();
        stream.write_all((take + &wait).as_bytes()).unwrap();
        waiting.push(stream);
        eventually_true("it waits or is rejected", || {
            info("blocked_clients") + info("buffer_rejections") > number as u64
        });
    }
    // A quarter is left for connections.
    assert!(info("buffer_bytes") * 2 > info("buffer_max_bytes"));
    let take = "SG.TAKE k gcra:1000/1h:burst=1000\r\n".repeat(1_000);
    let received = exchange(&server, &ours, None, &take).unwrap();
    assert_eq!(received.matches("*7\r\n:1\r\n").count(), 1_000, "{received}");
}

/// Bytes of the text of an `ECHO` that just fits one record of TLS.
const ECHO: usize = 16_000;

/// A connection over TLS, and the encrypted bytes of `count` commands `ECHO` for it. A client that sends them needs hardly
/// any time of the processor.
fn echoes(server: &Running, authority: &Authority, count: usize) -> (TcpStream, Vec<u8>) {
    let mut stream = connect(server.address, authority, None, &[]).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    stream.read_exact(&mut [0; 7]).unwrap();
    let command = format!("*2\r\n$4\r\nECHO\r\n${ECHO}\r\n{}\r\n", "x".repeat(ECHO));
    let mut sealed = Vec::new();
    for _ in 0..count {
        stream.conn.writer().write_all(command.as_bytes()).unwrap();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut sealed).unwrap();
        }
    }
    (stream.sock, sealed)
}

/// A client that sends as much as it can over TLS has turns as short as others: they span all writes, each of which is one
/// of a task there.
#[test]
fn fairness_greedy_pipeline_over_tls_yields() {
    let (folder, ours) = (TempDir::new(), authority());
    let server = server_with(&folder, &ours, None, |config| config.workers = Some(1));
    let count = size("SLUICEGATE_GREEDY_ECHOES", 2_000);
    let (mut greedy, sealed) = echoes(&server, &ours, count);
    let mut other = connect(server.address, &ours, None, &[]).unwrap();
    for socket in [&greedy, &other.sock] {
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    }
    let (received, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut replies = thread::scope(|scope| {
        let mut reader = greedy.try_clone().unwrap();
        let (received, is_over) = (&received, &is_over);
        scope.spawn(move || {
            let _over = SetOnDrop(is_over);
            let mut buffer = vec![0; 1024 * 1024];
            while received.load(Ordering::Relaxed) < count * ECHO {
                let length = reader.read(&mut buffer).unwrap();
                assert!(length > 0, "closed");
                received.fetch_add(length, Ordering::Relaxed);
            }
        });
        scope.spawn(move || greedy.write_all(&sealed).unwrap());
        // Replies to the one client before each reply to the other one.
        let mut replies = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let before = received.load(Ordering::Relaxed);
            other.write_all(b"PING\r\n").unwrap();
            let mut pong = [0; 7];
            other.read_exact(&mut pong).unwrap();
            assert_eq!(pong, *b"+PONG\r\n");
            replies.push((received.load(Ordering::Relaxed) - before) / ECHO);
        }
        replies
    });
    replies.sort_unstable();
    let [typical, most] = [replies.len() / 2, replies.len() - 1].map(|index| replies[index]);
    let replies = replies.len();
    println!(
        "figure: beside {count} replies to a greedy client over TLS, another one got {replies}; before each of them, the \
         greedy one got p50 {typical}, at most {most}"
    );
    // Without turns, the greedy one got up to 128 before each, as many as a task of tokio may read, and the other one fewer
    // than 150 in all. With turns it gets more than 1000, fewer if others use the processors.
    assert!(replies > count / 12, "{replies}");
}

#[test]
fn tls_client_ca_requires_a_certificate() {
    let (folder, ours, theirs) = (TempDir::new(), authority(), authority());
    let server = server(&folder, &ours, Some(&theirs));
    let known = certificate(&theirs, ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(exchange(&server, &ours, Some(known), "PING\r\n").unwrap(), "+PONG\r\n+OK\r\n");
    assert!(exchange(&server, &ours, None, "PING\r\n").is_err());
    let stranger = || certificate(&ours, ExtendedKeyUsagePurpose::ClientAuth);
    assert!(exchange(&server, &ours, Some(stranger()), "PING\r\n").is_err());
    let http = server.http.unwrap();
    let known = certificate(&theirs, ExtendedKeyUsagePurpose::ClientAuth);
    assert!(health(http, &ours, Some(known)).unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(health(http, &ours, None).is_err());
    assert!(health(http, &ours, Some(stranger())).is_err());
    // One of the right authority that has expired.
    let expired = || certificate_until(&theirs, ExtendedKeyUsagePurpose::ClientAuth, 2020);
    let error = exchange(&server, &ours, Some(expired()), "PING\r\n").unwrap_err();
    assert!(error.to_string().contains("CertificateExpired"), "{error}");
    assert!(health(http, &ours, Some(expired())).is_err());
    // Others are served after all of these.
    let known = certificate(&theirs, ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(exchange(&server, &ours, Some(known), "PING\r\n").unwrap(), "+PONG\r\n+OK\r\n");
}

#[test]
fn tls_invalid_files_are_named() {
    let folder = TempDir::new();
    fs::write(folder.file("empty"), "").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for name in ["empty", "none"] {
        let mut config = config();
        let file = folder.file(name);
        config.resp.tls =
            Some(TlsConfig { cert: file.clone(), key: file.clone(), client_ca: None });
        let error = runtime.block_on(Server::bind(config)).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
    }
}
