//! Log lines about actions of an operator.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::server::Server;

/// Sends a request with the token, and reads the response to its end.
fn post(server: &Server, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(&server.http).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
         Content-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    assert!(received.starts_with("HTTP/1.1 200 "), "{received}");
    received
}

#[test]
fn operator_action_is_logged_with_the_key_as_the_dashboard_shows_it() {
    for (mode, is_shown) in [("on", true), ("masked", false), ("no-keys", false), ("off", false)] {
        let server = Server::start(&["--http-token", "secret", "--dashboard", mode]);
        post(&server, "/admin/block", r#"{"key":"user:42","duration_us":60000000}"#);
        post(&server, "/admin/unblock", r#"{"key":"user:42"}"#);
        post(&server, "/admin/reset", r#"{"key":"user:42"}"#);
        let log = server.stop("-TERM");
        for action in ["key blocked by an operator", "key unblocked by", "key reset by"] {
            let lines: Vec<_> = log.lines().filter(|line| line.contains(action)).collect();
            let [line] = lines[..] else { panic!("{action}: {log}") };
            assert!(line.contains("WARN") && line.contains("127.0.0.1"), "{line}");
            assert_eq!(line.contains("user:42"), is_shown, "{mode}: {line}");
        }
    }
}
