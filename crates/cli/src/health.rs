//! `health`: whether a server is ready, for health checks that run a command, as those of Docker do.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use sluicegate_commands::plain_error;

use crate::{
    output::{NOT_READY, output, report},
    values::ListenAddress,
};

/// Time limit of the whole check.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a response that are read.
const MAX_RESPONSE: usize = 16 * 1024;

pub(crate) fn check(address: &ListenAddress) -> anyhow::Result<ExitCode> {
    let resolved =
        address.resolve().map_err(|expected| anyhow!("invalid address `{address}`: {expected}"))?;
    let problem = match request(reachable(resolved), TIMEOUT) {
        Ok(response) => {
            let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
            match head.split(' ').nth(1).filter(|_| head.starts_with("HTTP/1.")) {
                Some("200") => {
                    writeln!(output(), "ready")?;
                    return Ok(ExitCode::SUCCESS);
                }
                Some(status) => {
                    writeln!(output(), "not ready: {}", reason(status, body))?;
                    return Ok(ExitCode::from(NOT_READY));
                }
                None => format!(
                    "{address} does not speak HTTP without TLS: expected the address of `serve --http`"
                ),
            }
        }
        Err(error) => format!("the server at {address} does not answer: {}", plain_error(&error)),
    };
    report(format_args!("error: {problem}"));
    Ok(ExitCode::from(NOT_READY))
}

/// Why the server is not ready: the member `detail` of a problem document, or else the status.
fn reason(status: &str, body: &str) -> String {
    let printable = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    let problem = serde_json::from_str::<serde_json::Value>(body).unwrap_or_default();
    match problem.get("detail").and_then(serde_json::Value::as_str) {
        Some(detail) => detail.chars().map(printable).collect(),
        None => format!("HTTP status {status}"),
    }
}

/// Where a server that listens on all addresses is reached.
fn reachable(address: SocketAddr) -> SocketAddr {
    let is_all = address.ip().is_unspecified();
    if is_all { (Ipv4Addr::LOCALHOST, address.port()).into() } else { address }
}

/// Asks whether the server is ready, and reads the response until its end, which must come within `timeout`.
#[expect(clippy::disallowed_methods, reason = "it measures its own time limit")]
fn request(address: SocketAddr, timeout: Duration) -> io::Result<String> {
    let late = || {
        let text = format!("no complete response within {timeout:?}");
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    let deadline = Instant::now() + timeout;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let (mut response, mut buffer) = (Vec::new(), [0; 1024]);
    while response.len() < MAX_RESPONSE {
        // A limit for each read alone would let a slow server hold the check forever.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => response.extend_from_slice(&buffer[..count]),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(late()),
                _ => return Err(error),
            },
        }
    }
    Ok(String::from_utf8_lossy(&response).into_owned())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    #[test]
    fn request_response_that_drips_ends_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Each read times out, which paces the bytes.
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            for _ in 0..200 {
                let _ = stream.read(&mut [0; 1024]);
                if stream.write_all(b"H").is_err() {
                    break;
                }
            }
        });
        let error = request(address, Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "no complete response within 200ms");
        server.join().unwrap();
    }

    #[test]
    fn reachable_all_addresses_is_loopback() {
        for (address, expected) in [
            ("[::]:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("192.0.2.7:80", "192.0.2.7:80"),
        ] {
            assert_eq!(reachable(address.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
