//! Servers of each kind, with a module or without, and what they tell of themselves.

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
    pin,
    resp::{
        command::PATIENCE,
        peers,
        servers::{Server, free_address},
    },
};

/// The allocator that Debian's Redis uses. Valkey from PyPI has none of its own but that of libc,
/// which would be what is measured.
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

/// One on the servers' core, in an empty folder, with `arguments` of its own.
pub(super) fn start(engine: Engine, arguments: &[&str]) -> io::Result<Server> {
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
    // What it writes there it has open: nothing is left when it ends.
    if !arguments.contains(&"--appendonly") {
        fs::remove_dir_all(&folder)?;
    }
    server
}
/// Asks a server, which answers with a value or its error.
pub(super) fn ask(address: SocketAddr, words: &[&[u8]]) -> io::Result<Value> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
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

/// A number of `INFO section`: what stands behind `before`.
pub(super) fn told(address: SocketAddr, section: &str, before: &str) -> io::Result<f64> {
    let Value::Bulk(text) = ask(address, &[b"INFO", section.as_bytes()])? else {
        return Err(io::Error::other("INFO is no text"));
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
