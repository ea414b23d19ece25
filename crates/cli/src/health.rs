//! `health`: whether a server is ready, for health checks that run a command, as those of Docker do.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};

use crate::{exit_status::NOT_READY, values::ListenAddress};

/// Time limit of connecting, and of each read.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most bytes of a response that are read.
const MAX_RESPONSE: u64 = 16 * 1024;

pub(crate) fn check(address: &ListenAddress) -> anyhow::Result<ExitCode> {
    let resolved =
        address.resolve().map_err(|expected| anyhow!("invalid address `{address}`: {expected}"))?;
    let response =
        request(resolved).with_context(|| format!("the server at {address} does not answer"))?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    match head.split(' ').nth(1) {
        Some("200") if head.starts_with("HTTP/1.") => {
            println!("ready");
            Ok(ExitCode::SUCCESS)
        }
        Some(status) if head.starts_with("HTTP/1.") => {
            println!("not ready ({status}): {}", body.trim());
            Ok(ExitCode::from(NOT_READY))
        }
        _ => bail!(
            "{address} does not speak HTTP without TLS: expected the address of `serve --http`"
        ),
    }
}

fn request(address: std::net::SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut response)?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}
