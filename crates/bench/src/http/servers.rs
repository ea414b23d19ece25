//! The servers of the HTTP benchmark.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command as Program,
};

use crate::{
    ours, pin,
    resp::{
        peers,
        servers::{Server, free_address},
    },
};

pub(super) const OURS: &str = "sluicegate";

/// Sluicegate in this process, with or without rules. It ends with the process.
pub(super) fn in_process_with(rules: Option<PathBuf>) -> io::Result<Server> {
    Ok(Server::in_process(ours::serve(rules)?.http))
}

/// Starts a process on the servers' core.
pub(super) fn start(name: &str, mut run: Program, address: SocketAddr) -> io::Result<Server> {
    let log = peers::folder()?.join(format!("http-{}.log", name.replace([' ', ','], "-")));
    run.env_remove("SLUICEGATE_CONFIG");
    Server::start(run, address, pin::load_and_server_core()?.1, &log)
}

/// Sluicegate as a separate process, with or without rules.
pub(super) fn process_with(rules: Option<&Path>) -> io::Result<Server> {
    let address = free_address()?;
    let mut serve = Program::new(peers::ours()?);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--grpc", "off"]);
    serve.args(["--http", &address.to_string()]);
    if let Some(rules) = rules {
        serve.arg("--rules").arg(rules);
    }
    start(OURS, serve, address)
}

pub(super) fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}
