//! Servers of each kind, with or without a module, and the numbers that they report.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command as Program,
};

use sluicegate_resp::{Value, decode, encode_command};
use sluicegate_testing::Engine;

use crate::{
    load::REPLY_TIMEOUT,
    pin,
    resp::{
        peers,
        servers::{Server, free_address},
    },
};

/// The allocator of Debian's Redis. Valkey from PyPI uses that of libc, which distorts the measurement.
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

/// Starts a server on the servers' core, in an empty folder, with `arguments`.
pub(crate) fn start(engine: Engine, arguments: &[&str]) -> io::Result<Server> {
    let address = free_address()?;
    let folder = peers::folder()?.join(format!("server-{}", address.port()));
    fs::create_dir_all(&folder)?;
    let mut program = Program::new(engine.program()?);
    program.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--dir"]);
    program.arg(&folder).args(["--save", ""]).args(arguments);
    if engine == Engine::Valkey91 && Path::new(JEMALLOC).exists() {
        program.env("LD_PRELOAD", JEMALLOC);
    }
    let server =
        Server::start(program, address, pin::load_and_server_core()?.1, &folder.join("log"));
    // The server has its files open; they disappear when it exits.
    if !arguments.contains(&"--appendonly") {
        fs::remove_dir_all(&folder)?;
    }
    server
}

/// Sends a command to a server, and returns the reply or its error.
pub(super) fn call(address: SocketAddr, words: &[&[u8]]) -> io::Result<Value> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let (mut bytes, mut reply, mut buffer) = (Vec::new(), Vec::new(), [0; 4096]);
    encode_command(words, &mut bytes);
    socket.write_all(&bytes)?;
    loop {
        let count = socket.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        reply.extend_from_slice(&buffer[..count]);
        match decode(&reply).map_err(io::Error::other)? {
            Some((Value::Error(error), _)) => {
                return Err(io::Error::other(String::from_utf8_lossy(&error).into_owned()));
            }
            Some((value, _)) => return Ok(value),
            None => {}
        }
    }
}

/// A number in `INFO section`: the one that follows `before`.
pub(super) fn info_number(address: SocketAddr, section: &str, before: &str) -> io::Result<f64> {
    let Value::Bulk(text) = call(address, &[b"INFO", section.as_bytes()])? else {
        return Err(io::Error::other("the reply of INFO is not a string"));
    };
    let text = String::from_utf8_lossy(&text);
    let number = text.split_once(before).map(|(_, rest)| {
        let end = rest.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(rest.len());
        rest[..end].parse()
    });
    match number {
        Some(Ok(number)) => Ok(number),
        _ => Err(io::Error::other(format!("INFO {section} has no {before}"))),
    }
}
