//! Several protocols on one server: each at its port, with one connection limit and one stop for all.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use sluicegate_testing::eventually;

use crate::harness::{Running, any_port, simple};

/// A server with all protocols.
fn all() -> Running {
    Running::with(|config| {
        (config.http.address, config.envoy.address) = (Some(any_port()), Some(any_port()));
    })
}

fn connect(address: Option<SocketAddr>) -> TcpStream {
    let stream = TcpStream::connect(address.unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// All that comes until the server closes.
fn rest(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    String::from_utf8_lossy(&received).into_owned()
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn protocols_answer_at_their_ports() {
    let server = all();
    assert_eq!(server.connect().call("PING"), simple("PONG"));
    let mut http = connect(server.http);
    http.write_all(HEALTH).unwrap();
    assert!(rest(&mut http).starts_with("HTTP/1.1 200 OK\r\n"));
    for address in [server.http, server.grpc] {
        // The first words of HTTP/2, with settings that are empty.
        let mut two = connect(address);
        two.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut head = [0; 9];
        two.read_exact(&mut head).unwrap();
        assert_eq!((head[3], &head[5..]), (4, &[0; 4][..]), "it sends its settings");
    }
    let off = Running::new();
    assert_eq!((off.http, off.grpc), (None, None));
}

#[test]
fn protocols_share_max_clients() {
    let server = Running::with(|config| {
        (config.http.address, config.envoy.address) = (Some(any_port()), Some(any_port()));
        config.max_clients = 1;
    });
    let mut only = server.connect();
    assert_eq!(only.call("PING"), simple("PONG"));
    // HTTP is taken in, for the sake of health checks; all else is rejected there.
    let asks = |path: &str| {
        let mut http = connect(server.http);
        http.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
            .unwrap();
        rest(&mut http)
    };
    assert!(asks("/openapi.json").starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
    assert!(asks("/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(rest(&mut connect(server.grpc)), "");
    drop(only);
    // It may not have been seen to leave yet.
    eventually("the one after it is served", || {
        let mut http = connect(server.http);
        let _ = http.write_all(HEALTH);
        let received = rest(&mut http);
        if received.starts_with("HTTP/1.1 200 OK\r\n") { Ok(()) } else { Err(received) }
    });
}

#[test]
fn stop_closes_all_protocols() {
    let mut server = all();
    let mut clients = [connect(server.http), connect(server.grpc)];
    clients[0].write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 15];
    clients[0].read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.begin_to_stop();
    for client in &mut clients {
        rest(client);
    }
}
